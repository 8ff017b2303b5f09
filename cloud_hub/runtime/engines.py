"""Opens the engines of the versions that a hub serves from its start, and the catalog of all that it may serve.

Rule: a configured bundle that cannot be used ends the start; one of a folder is left out, and the one before serves.
"""

import contextlib
from pathlib import Path

from cloud_hub.engine.base import ClusterError, Engine, EngineError
from cloud_hub.engine.factory import open_engine
from cloud_hub.runtime.config import HubConfig
from cloud_hub.serving.bundles import BundleFolders
from cloud_hub.storage.versions import ModelUsageStore
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog, safe_name, safe_text


def open_engines(config: HubConfig, log: JsonLog) -> list[Engine]:
    """Start one engine per version. ExitError(MODEL) naming a configured one that cannot be used.

    ExitError(MISSING) for one that is not there, ExitError(CLUSTER) for machines that a model is to be spread over.
    A version of `models_folder` that cannot be used is left out with a line in the log; the one before it serves on.
    """
    from models.bundle.manifest import BundleError  # noqa: PLC0415

    if not config.models and config.models_folder is None and not config.llm:
        raise ExitError(ExitCode.MODEL, "no model to serve: set models = [bundle folder, ...], or [[llm]]")

    retired = _read_retired(config)  # the region's database is named before the folders of this machine
    for path in config.models:
        if not path.exists():
            raise ExitError(ExitCode.MISSING, f"{path}: no such bundle; correct models = [...]")

    def report(path: Path, why: str) -> None:
        log.error("version_left_out", folder=safe_name(path.name), why=safe_text(why.replace(str(path), "")))

    try:
        return bundle_catalog(config).open_initial(retired, report)
    except ClusterError as error:
        raise ExitError(ExitCode.CLUSTER, str(error)) from None
    except (BundleError, EngineError) as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


def bundle_catalog(config: HubConfig) -> BundleFolders:
    """Return the catalog of every bundle this hub may serve."""
    means = config.engine_options()
    return BundleFolders(
        config.models, config.models_folder, config.hub_settings(), lambda path: open_engine(path, means)
    )


def _read_retired(config: HubConfig) -> frozenset[str]:
    with contextlib.closing(ModelUsageStore.open(config.database_urls().versions)) as spoken:
        return spoken.retired_models()
