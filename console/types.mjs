// docs/openapi.json → src/core/schema.d.ts: the shapes of the API, and what each operation takes and gives.
// A shape that changes breaks the type check, not the user.
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const spec = JSON.parse(readFileSync(join(here, "..", "docs", "openapi.json"), "utf8"));
const BASE = "/api/v1";

function type(schema) {
  if (schema === undefined || schema === true) return "unknown";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const any = schema.anyOf ?? schema.oneOf;
  if (any) return [...new Set(any.map(type))].join(" | ");
  if (Array.isArray(schema.type)) return schema.type.map((one) => type({ ...schema, type: one })).join(" | ");
  switch (schema.type) {
    case "integer":
    case "number":
      return "number";
    case "string":
    case "boolean":
    case "null":
      return schema.type;
    case "array":
      return schema.items ? `Array<${type(schema.items)}>` : "Array<unknown>";
    case "object":
      return schema.properties ? members(schema) : `Record<string, ${type(schema.additionalProperties)}>`;
    default:
      return "unknown";
  }
}

function members(schema) {
  const required = new Set(schema.required ?? []);
  const lines = Object.entries(schema.properties).map(([name, value]) => {
    const unknown = type(value) === "unknown";
    return `  ${/^\w+$/.test(name) ? name : JSON.stringify(name)}${required.has(name) && !unknown ? "" : "?"}: ${type(value)};`;
  });
  return `{\n${lines.join("\n")}\n}`;
}

const json = (content) => (content?.["application/json"] ? type(content["application/json"].schema) : "unknown");
const schemas = Object.entries(spec.components.schemas).map(([name, schema]) => `export type ${name} = ${type(schema)};\n`);
const operations = [];
for (const [path, methods] of Object.entries(spec.paths)) {
  if (!path.startsWith(BASE)) continue;
  for (const [method, operation] of Object.entries(methods)) {
    const [, answer] = Object.entries(operation.responses).find(([status]) => status.startsWith("2")) ?? [];
    const query = (operation.parameters ?? []).filter((one) => one.in === "query").map((one) => `${JSON.stringify(one.name)}?: unknown`);
    operations.push(
      `  ${JSON.stringify(`${method.toUpperCase()} ${path.slice(BASE.length)}`)}: {\n    query: { ${query.join("; ")} };\n` +
        `    body: ${json(operation.requestBody?.content)};\n    answer: ${json(answer?.content)};\n  };`,
    );
  }
}
writeFileSync(
  join(here, "src", "core", "schema.d.ts"),
  `// Written by types.mjs from docs/openapi.json.\n\n${schemas.join("\n")}\nexport interface Operations {\n${operations.join("\n")}\n}\n`,
);
