// Writes src/agent.ts and src/hub.ts from the OpenAPI documents of a running agent and hub:
//   npm run generate -- http://127.0.0.1:8090 http://127.0.0.1:8080
import { writeFile } from "node:fs/promises";
import openapiTS, { astToString } from "openapi-typescript";

const [agent, hub, folder = "src"] = process.argv.slice(2);
for (const [name, url] of [["agent", agent], ["hub", hub]]) {
  const types = astToString(await openapiTS(new URL("/openapi.json", url)));
  const head = `// Generated from the ${name}'s /openapi.json by \`npm run generate\`; not to be edited.\n`;
  await writeFile(`${folder}/${name}.ts`, head + types);
}
