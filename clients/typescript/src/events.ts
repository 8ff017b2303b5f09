// Server-sent events over fetch (WHATWG HTML, section 9.2) that go on behind the last one where a connection broke.

export interface ServerEvent {
  id: number;
  name: string;
  data: string;
}

const FIRST_PAUSE_MS = 250;
const MAX_PAUSE_MS = 5000;

/** Events of `url` behind number `after`, each once, until `signal`. Throws if the server refuses. */
export async function* readEvents(
  url: string,
  headers: Record<string, string>,
  after: number | undefined,
  signal?: AbortSignal,
): AsyncGenerator<ServerEvent> {
  let last = after;
  let pause = FIRST_PAUSE_MS;
  while (!isAborted(signal)) {
    try {
      const resume: Record<string, string> = last === undefined ? {} : { "Last-Event-ID": String(last) };
      const reply = await fetch(url, { headers: { ...headers, ...resume }, ...(signal === undefined ? {} : { signal }) });
      if (!reply.ok && ![429, 503].includes(reply.status)) throw new Refusal(`${url}: ${reply.status}`);
      if (reply.ok && reply.body !== null) {
        for await (const event of decode(reply.body)) {
          pause = FIRST_PAUSE_MS;
          const fresh = last === undefined || event.id > last;
          last = Math.max(event.id, last ?? 0);
          if (fresh && event.data !== "") yield event;
        }
      }
    } catch (error) {
      if (error instanceof Refusal) throw error;
      if (isAborted(signal)) return;
    }
    await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
    pause = Math.min(MAX_PAUSE_MS, pause * 2);
  }
}

function isAborted(signal: AbortSignal | undefined): boolean {
  return signal?.aborted ?? false;
}

class Refusal extends Error {}

/** The events of a body; one without data says only where the stream is. */
async function* decode(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const decoder = new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>;
  const reader = body.pipeThrough(decoder).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const fields = new Map(block.split("\n").map((line) => split(line)));
        if (fields.has("id")) {
          yield { id: Number(fields.get("id")), name: fields.get("event") ?? "message", data: fields.get("data") ?? "" };
        }
      }
    }
  } finally {
    await reader.cancel();
  }
}

function split(line: string): [string, string] {
  const at = line.indexOf(":");
  return at < 0 ? [line, ""] : [line.slice(0, at), line.slice(at + 1).replace(/^ /, "")];
}
