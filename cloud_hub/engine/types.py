"""Values of the inference engines: model card, work item, and the hub's options for engines. Pure."""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError, InputSpec, Manifest, ParallelPlan
from models.bundle.measurements import LeakageRow
from models.runtime.feature_codec import NUMPY_DTYPES, CodecError, open_codec, read_codec_tables
from policies.serving.computing import ComputeOptions, ComputeOverride, Precision
from policies.serving.placement import PlacementRequest
from wire.protocol.messages import FieldSpec, ModelRef, TensorDType


class ModelCard(msgspec.Struct, frozen=True):
    """Description of one served model version: its inputs, outputs, codec tables and batch limits.

    `features`: the forwardable fields of the bundle, as codes; `input_*` describe one raw sample without batch axis.
    """

    ref: ModelRef
    features: tuple[FieldSpec, ...]
    labels: tuple[str, ...] = ()
    input_name: str = "input"
    input_dtype: str = "FP32"
    input_shape: tuple[int, ...] = ()
    input_low: float = -math.inf
    input_high: float = math.inf
    outputs: int = 1  # values of a regressor (it has no labels); a classifier has one per label
    max_batch: int = 32
    tables: bytes = b""  # entropy tables of the codec, if it has any
    leakage: tuple[LeakageRow, ...] = ()
    buckets: tuple[int, ...] = ()  # batch sizes that are computed; a batch is padded to the next one
    weight_bytes: int = 0  # of its weights: as stored, once it is loaded as they are in memory; 0 = unknown
    slots: int = 1  # batches that may run at once, one per replica
    manifest: Manifest | None = None  # of the bundle that it was made of

    @property
    def name(self) -> str:
        """Name and version, as `digits@7`, in predictions, metrics and the web API."""
        return f"{self.ref.name}@{self.ref.version}"

    @property
    def input(self) -> InputSpec:
        """The input of one sample."""
        dtype = TensorDType(self.input_dtype)
        return InputSpec(self.input_name, dtype, self.input_shape, self.input_low, self.input_high)

    def accepts_inputs(self, inputs: npt.NDArray[np.generic]) -> bool:
        """Whether `inputs` is `[n, *input_shape]`, n >= 1, of the right type, made of finite numbers of its range."""
        if inputs.shape[1:] != self.input_shape or inputs.ndim < 1 or not len(inputs):
            return False
        if inputs.dtype != NUMPY_DTYPES[TensorDType(self.input_dtype)] or not np.isfinite(inputs).all():
            return False
        return bool(self.input_low <= inputs.min() and inputs.max() <= self.input_high)


class WorkItem(msgspec.Struct, frozen=True):
    """One item of a batch: decoded feature codes by field name, or one raw sample of a web request."""

    codes: dict[str, npt.NDArray[np.uint8]] = {}
    raw: npt.NDArray[np.generic] | None = None
    weight: float = 1.0  # relative cost; fair turns and batch sizes are counted in it


def make_model_card(manifest: Manifest, max_batch: int = 32, tables: bytes = b"") -> ModelCard:
    """Make the card of the hub model that a manifest describes.

    `tables`: entropy tables of its codec, if it has any.
    """
    return ModelCard(
        ref=manifest.ref,
        features=manifest.features,
        labels=manifest.labels,
        input_name=manifest.input.name,
        input_dtype=manifest.input.dtype.value,
        input_shape=manifest.input.shape,
        input_low=manifest.input.low,
        input_high=manifest.input.high,
        outputs=manifest.outputs,
        max_batch=max_batch,
        tables=tables,
        leakage=manifest.leakage,
        manifest=manifest,
    )


def make_bundle_card(bundle: Bundle, max_batch: int = 32) -> ModelCard:
    """Make the card of a bundle, with its codec tables. BundleError if its codec cannot be opened."""
    manifest = bundle.manifest
    try:
        open_codec(manifest, bundle.read_file)
    except CodecError as error:
        raise BundleError(f"{manifest.model}: {error}") from None
    return make_model_card(manifest, max_batch, read_codec_tables(manifest, bundle.read_file))


class RemoteServer(msgspec.Struct, frozen=True):
    """Server that computes a model's graphs (protocol v2 over HTTP). `url`: up to the `/v2`, http or https.

    `tail`, `whole`: what it calls the two graphs; `token_file`: of a bearer token, `ca_file`: of the certificates that
    it is trusted by, "" = none and the system's; `answer_s`: for one batch, `connect_s`: to open the connection.
    """

    url: str
    tail: str
    whole: str
    token_file: str = ""
    ca_file: str = ""
    connect_s: float = 5.0
    answer_s: float = 10.0


class RayOptions(msgspec.Struct, frozen=True):
    """Ray cluster that models are spread over. `address`: of its head, as `10.0.0.1:6379`.

    `nodes`: machines that a plan may count on; `host`: address of this hub that they reach, "" = the one that leads to
    the head; `first_port`, `last_port`: where ranks connect to this hub, 0 = any.
    """

    address: str
    nodes: int = 1
    host: str = ""
    first_port: int = 0
    last_port: int = 0

    @property
    def ports(self) -> range:
        """Ports that a generation may listen at."""
        return range(self.first_port, self.last_port + 1)


class EngineOptions(msgspec.Struct, frozen=True):
    """Hub options for engines: batch size, threads, devices and sharding; 0 = not set.

    `max_batch`: items at most; `threads`: of torch, in each process; `memory_bytes`: per device; `ready_s`: time limit
    for an engine to become ready. `compute`: of every model; `models`: what differs for one, by `digits@7` or `digits`;
    `remote`: servers that compute a model instead of this machine, named likewise. `language_models`: those of the hub,
    each with the questions of devices that it is asked at once. `ray`: machines that models are spread over; `devices`
    are of each of them then. `scaled`: models whose replicas follow their load.
    """

    max_batch: int = 32
    threads: int = 1
    devices: int = 0
    memory_bytes: int = 0
    tensor: int = 0
    pipeline: int = 0
    replicas: int = 0
    ready_s: float = 60.0
    compute: ComputeOptions = ComputeOptions()
    models: dict[str, ComputeOverride] = {}
    remote: dict[str, RemoteServer] = {}
    language_models: dict[str, int] = {}
    ray: RayOptions | None = None
    scaled: frozenset[str] = frozenset()

    def without_measuring(self) -> "EngineOptions":
        """The same options with float32 for `auto`: what two machines would each measure may fall out differently."""

        def settle(options: ComputeOptions) -> ComputeOptions:
            plain = options.precision is Precision.AUTO
            return msgspec.structs.replace(options, precision=Precision.FLOAT32) if plain else options

        models = {
            name: msgspec.structs.replace(own, precision=Precision.FLOAT32) if own.precision is Precision.AUTO else own
            for name, own in self.models.items()
        }
        return msgspec.structs.replace(self, compute=settle(self.compute), models=models)

    def for_model(self, ref: ModelRef) -> "EngineOptions":
        """The options of one version: an engine of one whose replicas follow its load is one replica."""
        scaled = bool(self.scaled & {f"{ref.name}@{ref.version}", ref.name})
        return msgspec.structs.replace(self, replicas=1) if scaled else self

    def compute_options(self, ref: ModelRef) -> ComputeOptions:
        """Device and precision of one version: its own entry, else its model's, over those of every model."""
        own = self.models.get(f"{ref.name}@{ref.version}") or self.models.get(ref.name)
        return own.apply(self.compute) if own else self.compute

    def remote_server(self, ref: ModelRef) -> RemoteServer | None:
        """Server that computes a version: its own, else its model's, else None."""
        return self.remote.get(f"{ref.name}@{ref.version}") or self.remote.get(ref.name)


class EngineSetup(msgspec.Struct, frozen=True):
    """What an engine runs on. `device`: "cpu", "cuda:0"; `weight_bytes`: of its weights there, all ranks together.

    `fallback`: one line if this is not what the options asked for first, else "". `steps`: one line on compiled or
    recorded batch sizes, "" if none are wanted.
    """

    device: str = "cpu"
    precision: Precision = Precision.FLOAT32
    weight_bytes: int = 0
    fallback: str = ""
    steps: str = ""


def make_placement_request(plan: ParallelPlan, means: EngineOptions) -> PlacementRequest:
    """Placement that is requested for a model: the hub's options override the hub part's plan."""
    replicas = means.replicas or plan.replicas
    return PlacementRequest(
        means.tensor or plan.tensor, means.pipeline or plan.pipeline, replicas or (0 if means.devices else 1)
    )


def needs_sharding(plan: ParallelPlan, means: EngineOptions) -> bool:
    """Whether the model may need several processes, so that a placement has to be computed."""
    wanted = make_placement_request(plan, means)
    several = max(wanted.tensor, wanted.pipeline, wanted.replicas) > 1
    return several or means.devices * (means.ray.nodes if means.ray else 1) > 1 or means.memory_bytes > 0
