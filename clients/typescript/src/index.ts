// Client of Skerry: a device's agent and a hub, typed by their own OpenAPI documents (agent.ts, hub.ts).
import createClient, { type Client } from "openapi-fetch";
import type { paths as AgentPaths } from "./agent.js";
import type { paths as HubPaths } from "./hub.js";
import { readEvents } from "./events.js";

type RecordsReply = AgentPaths["/v1/answers/{id}"]["get"]["responses"]["200"]["content"]["application/json"];
/** One record of a device: an answer, or the hub's correction of it. */
export type Answer = RecordsReply["records"][number];
export type Why = Record<string, unknown>;

/** Where a server is. `token`: a bearer token; none is needed on the server's own machine. */
export interface Place {
  url: string;
  token?: string;
}

/** A refusal: the status and the server's own line. */
export class SkerryError extends Error {
  constructor(readonly status: number, message: string) {
    super(`${status}: ${message}`);
    this.name = "SkerryError";
  }
}

/** Nobody answers at a place, or the connection broke before the whole reply was there. */
export class SkerryConnectionError extends Error {
  constructor(url: string, cause: unknown) {
    super(`${new URL(url).origin}: nobody answers (${causeOf(cause)}); is the server running there?`, { cause });
    this.name = "SkerryConnectionError";
  }
}

/** A sample that does not fit the model's input; nothing was sent. */
export class SampleError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "SampleError";
  }
}

/** What a model takes: one tensor of this name, type and shape, the first axis of which is the batch. */
export interface ModelInput {
  model: string;
  name: string;
  datatype: string;
  shape: number[];
}

export interface AskOptions {
  /** Class of the sample, which the policy's rules name; left out: the agent's. */
  dataClass?: string;
  /** Whom it is about; kept and sent as a keyed hash only. */
  subject?: string;
  /** Seconds to wait for the hub's answer where the device asked it; 0: the device's own, at once. */
  waitS?: number;
}

/** A device's agent. */
export class Agent {
  /** Every route of the agent, typed; for what has no method here. */
  readonly api: Client<AgentPaths>;
  readonly #place: Place;
  #input: ModelInput | undefined;

  constructor(place: Place) {
    this.#place = place;
    this.api = createClient<AgentPaths>({ baseUrl: place.url, headers: headersOf(place), fetch: reach });
  }

  /** Ask about one sample: its values in the model's shape, flat, or a text. Resolves to the best answer in `waitS`. */
  async ask(sample: readonly number[] | string, options: AskOptions = {}): Promise<Answer> {
    const waitS = options.waitS ?? 0;
    if (!(waitS >= 0)) throw new RangeError(`waitS: ${waitS} is no time of 0 seconds or more`);
    const input = (this.#input ??= await this.input());
    const data = typeof sample === "string" ? [sample] : [...sample];
    checkSample(data, input);
    const parameters = {
      ...(options.dataClass === undefined ? {} : { data_class: options.dataClass }),
      ...(options.subject === undefined ? {} : { subject: options.subject }),
    };
    const tensor = { name: input.name, datatype: input.datatype as "FP32", shape: [1, ...input.shape.slice(1)], data };
    const reply = take(
      await this.api.POST("/v2/models/{model}/infer", {
        params: { path: { model: input.model } },
        body: { inputs: [tensor], parameters },
      }),
    );
    const id = String((reply.parameters as Record<string, unknown> | undefined)?.["answer_id"] ?? "");
    const records = await this.records(id, waitS);
    // the device's own is the one that corrections come behind, also where one is there already
    return records[waitS > 0 ? records.length - 1 : 0]!;
  }

  /** The model that answers now, and what it takes. */
  async input(): Promise<ModelInput> {
    const status = take(await this.api.GET("/v1/status")) as Record<string, unknown>;
    const model = String(status["model"] ?? "").replace(/@[^@]*$/, "");
    const card = take(await this.api.GET("/v2/models/{model}", { params: { path: { model: model || "none" } } }));
    const [first] = card.inputs as unknown as ModelInput[];
    if (first === undefined || card.inputs.length !== 1) throw new SkerryError(200, `${model} has no one input`);
    return { model, name: first.name, datatype: first.datatype, shape: first.shape };
  }

  /** All records of an answer, waiting up to `waitS` seconds while a correction is owed. */
  async records(answerId: string, waitS = 0): Promise<Answer[]> {
    const params = { path: { id: answerId }, query: { wait_s: waitS } };
    const reply = take(await this.api.GET("/v1/answers/{id}", { params }));
    if (reply.records.length === 0) throw new SkerryError(200, "the reply has no record");
    return reply.records;
  }

  /** The hub's correction of an answer; undefined if none came in time, or none is owed. */
  async correction(answer: Answer, waitS = 10): Promise<Answer | undefined> {
    return (await this.records(answer.answer_id, waitS)).find((record) => record.kind === "correction");
  }

  /** Corrections as they come, behind the event of `after`; goes on over breaks of the connection, until `signal`. */
  async *corrections(after?: Answer | number, signal?: AbortSignal): AsyncGenerator<Answer> {
    const last = typeof after === "number" ? after : after?.event;
    for await (const event of readEvents(`${this.#place.url}/v1/events`, headersOf(this.#place), last, signal)) {
      if (event.name === "correction") yield JSON.parse(event.data) as Answer;
    }
  }

  /** Why an answer is what it is, and what left for it. */
  async why(answer: Answer): Promise<Why> {
    return take(await this.api.GET("/v1/answers/{id}/why", { params: { path: { id: answer.answer_id } } })) as Why;
  }

  /** Tell the device what was true: a label's number or name, a regressor's value. */
  async feedback(answer: Answer, truth: number | string): Promise<void> {
    const params = { path: { id: answer.answer_id } };
    take(await this.api.POST("/v1/answers/{id}/feedback", { params, body: { truth } }));
  }
}

/** Every route of a hub, typed. A refusal is in `error` of what a call resolves to; `take` throws it. */
export function createHub(place: Place): Client<HubPaths> {
  return createClient<HubPaths>({ baseUrl: place.url, headers: headersOf(place), fetch: reach });
}

/** The data of a reply. Throws SkerryError with the server's line if it is a refusal. */
export function take<T>(reply: { data?: T; error?: unknown; response: Response }): T {
  if (reply.response.ok && reply.data !== undefined) return reply.data;
  const told = (reply.error as { error?: unknown } | undefined)?.error;
  throw new SkerryError(reply.response.status, typeof told === "string" ? told : reply.response.statusText);
}

/** Whether the values fit: as many as the shape has, and finite numbers. Throws SampleError. */
function checkSample(data: readonly (number | string)[], input: ModelInput): void {
  const shape = input.shape.slice(1);
  const wanted = `${input.name} takes ${input.datatype} [${shape.join(", ")}]`;
  if ((input.datatype === "BYTES") !== (typeof data[0] === "string")) throw new SampleError(wanted);
  if (input.datatype === "BYTES") return;
  const count = shape.reduce((product, size) => product * size, 1);
  if (data.length !== count) throw new SampleError(`${data.length} values came, ${wanted}`);
  if (!data.every((value) => Number.isFinite(value))) throw new SampleError(`a value is NaN or infinite, ${wanted}`);
}

/** `fetch` whose failure says what to do. */
async function reach(request: Request): Promise<Response> {
  try {
    return await fetch(request);
  } catch (error) {
    if (request.signal.aborted) throw error;
    throw new SkerryConnectionError(request.url, error);
  }
}

/** The words of an error of `fetch`, which stand in its cause. */
function causeOf(error: unknown): string {
  const inner = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const code = (inner as { code?: unknown } | undefined)?.code;
  return inner instanceof Error && inner.message !== "" ? inner.message : String(code ?? inner);
}

function headersOf(place: Place): Record<string, string> {
  return place.token === undefined ? {} : { Authorization: `Bearer ${place.token}` };
}
