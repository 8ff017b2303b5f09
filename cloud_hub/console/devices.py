"""One device: its state and health, what it asked this hub, what it spent, and its ledger with its proof state."""

from aiohttp import web

from cloud_hub.api.admin import describe_device
from cloud_hub.api.interface import ApiContext
from cloud_hub.console.pages import ConsolePage, PageContent, PageGroup, Viewer
from cloud_hub.registry.registry import EnrolledDevice
from wire.http.oip import OipError, shorten_name


class DevicePages:
    """The page of one device."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def group(self) -> PageGroup:
        """Return the pages of this group."""
        return PageGroup((ConsolePage("/devices/{device}", self.show, "fleet", whole=False),), {"device": self._digest})

    def _digest(self, about: str, viewer: Viewer) -> object:
        device = self._context.registry.device(about)
        if device is None or not viewer.caller.sees_tenant(device.tenant):
            return None
        return device.state, device.changed_ms, self._context.hub.device_activity(device.id)

    async def show(self, request: web.Request, viewer: Viewer) -> PageContent:
        """Show the device; 404 if it is unknown or another tenant's."""
        device = self._find(request.match_info["device"], viewer)
        values = {"device": describe_device(self._context, device)}
        return PageContent("device.html", values, device.id, topic=f"device:{device.id}")

    def _find(self, name: str, viewer: Viewer) -> EnrolledDevice:
        device = self._context.registry.device(name)
        if device is None or not viewer.caller.sees_tenant(device.tenant):
            raise OipError(404, f"There is no device '{shorten_name(name)}' that this key may see.")
        return device
