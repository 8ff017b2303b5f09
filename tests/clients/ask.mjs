// Asks a device and reads the hub's correction, by the compiled client: node ask.mjs URL VALUE...
import { pathToFileURL } from "node:url";

const [client, url, ...values] = process.argv.slice(2);
const { Agent, SkerryError } = await import(pathToFileURL(client).href);
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
console.log(JSON.stringify({
  asked: answer.escalation_id !== "", correction: correction?.kind, streamed: streamed.answer_id === answer.answer_id,
  why: Object.keys(why).length > 0, refused: refused instanceof SkerryError ? refused.status : String(refused),
}));
process.exit(0);
