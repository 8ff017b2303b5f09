// Asks a device and reads the hub's correction, by the compiled client: node ask.mjs URL VALUE...
import { pathToFileURL } from "node:url";

const [client, url, ...values] = process.argv.slice(2);
const { Agent, SampleError, SkerryConnectionError, SkerryError } = await import(pathToFileURL(client).href);
const agent = new Agent({ url });
const answer = await agent.ask(values.map(Number), { dataClass: "open" });
const stop = new AbortController();
let streamed;
for await (const correction of agent.corrections(answer, stop.signal)) {
  streamed = correction;
  stop.abort();
  break;
}
const correction = await agent.correction(answer, 30);
await agent.feedback(answer, 0);
const why = await agent.why(answer);
const refused = await agent.feedback(answer, 99).catch((error) => error);
const unfit = [];
for (const sample of [[NaN, ...values.slice(1).map(Number)], [1], "a text"]) {
  unfit.push((await agent.ask(sample).catch((error) => error)) instanceof SampleError);
}
const absent = await new Agent({ url: "http://127.0.0.1:9" }).ask([1]).catch((error) => error);
console.log(JSON.stringify({
  unfit, absent: absent instanceof SkerryConnectionError && absent.message.includes("127.0.0.1:9: nobody answers ("),
  asked: answer.escalation_id !== "", correction: correction?.kind, streamed: streamed.answer_id === answer.answer_id,
  why: Object.keys(why).length > 0, refused: refused instanceof SkerryError ? refused.status : String(refused),
}));
process.exit(0);
