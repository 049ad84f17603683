// The API of this server, as it describes itself: each operation with its parameters, roles, answers and a curl.

import { useMemo, useState } from "preact/hooks";
import { Refusal } from "../core/api";
import { useQuery } from "../core/query";
import { base, query, setQuery } from "../core/router";
import { Empty, Page, Section, Show } from "../parts/page";
import { Search } from "../parts/search";
import { Copy, many } from "../parts/show";

interface Schema {
  $ref?: string;
  type?: string | string[];
  enum?: unknown[];
  const?: unknown;
  anyOf?: Schema[];
  oneOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  additionalProperties?: Schema | boolean;
  required?: string[];
  description?: string;
  default?: unknown;
  format?: string;
}
interface Parameter {
  name: string;
  in: string;
  description?: string;
  required?: boolean;
  schema: Schema;
}
type Content = Record<string, { schema?: Schema }>;
interface Operation {
  operationId: string;
  tags: string[];
  summary: string;
  description?: string;
  parameters?: Parameter[];
  requestBody?: { content: Content };
  responses: Record<string, { description: string; content?: Content; "x-codes"?: string[] }>;
  "x-roles"?: string[];
}
interface Document {
  info: { title: string; version: string; description: string };
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema> };
}
interface Row {
  method: string;
  path: string;
  of: Operation;
}

async function load(signal: AbortSignal): Promise<Document> {
  const answer = await fetch(`${base}openapi.json`, { signal });
  if (!answer.ok) throw new Refusal({ code: `http_${answer.status}`, message: "this server does not describe itself here" }, answer.status, null);
  return (await answer.json()) as Document;
}

export default function ApiReference() {
  const document = useQuery("openapi", load);
  const text = query.value.get("q") ?? "";
  const rows = useMemo(() => Object.entries(document.data?.paths ?? {}).flatMap(([path, its]) => Object.entries(its).map(([method, of]): Row => ({ method: method.toUpperCase(), path, of }))), [document.data]);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fit = rows.filter(({ method, path, of }) => words.every((word) => `${method} ${path} ${of.summary} ${of.description ?? ""} ${of.tags.join(" ")}`.toLowerCase().includes(word)));
  const tags = [...new Set(fit.flatMap(({ of }) => of.tags.slice(0, 1)))];
  return (
    <Page
      title="API"
      remark={document.data && `Mainspring ${document.data.info.version} · ${many(rows.length, "operation")}`}
      actions={
        <a class="button plain" href={`${base}openapi.json`} download="openapi.json">
          openapi.json
        </a>
      }
    >
      <Show of={document}>
        {({ info, components, tags: described }) => (
          <>
            <p class="prose quiet">{info.description.replaceAll("`", "")}</p>
            <Search label="Search operations" placeholder="cancel, POST /tasks, schedule" value={text} set={(q) => setQuery({ q })} />
            {!fit.length && <Empty title={`No operation has “${text}”.`} />}
            {tags.map((tag) => (
              <Section key={tag} title={tag} aside={described.find(({ name }) => name === tag)?.description}>
                <ul class="operations">
                  {fit
                    .filter(({ of }) => of.tags[0] === tag)
                    .map((row) => (
                      <li key={row.of.operationId + row.method}>
                        <One row={row} schemas={components.schemas} isNamed={query.value.get("op") === row.of.operationId} />
                      </li>
                    ))}
                </ul>
              </Section>
            ))}
          </>
        )}
      </Show>
    </Page>
  );
}

function One({ row: { method, path, of }, schemas, isNamed }: { row: Row; schemas: Record<string, Schema>; isNamed: boolean }) {
  const [open, setOpen] = useState(isNamed);
  return (
    <details
      open={open}
      onToggle={({ currentTarget: { open: is } }) => {
        setOpen(is);
        if (is !== isNamed) setQuery({ op: is ? of.operationId : null });
      }}
    >
      <summary>
        <span class={`method ${method.toLowerCase()}`}>{method}</span>
        <code>{path.replace(/^\/api\/v1/, "")}</code>
        <span class="quiet">{of.summary.replaceAll("`", "")}</span>
      </summary>
      {open && <Whole row={{ method, path, of }} schemas={schemas} />}
    </details>
  );
}

/** Drawn once it is wanted: there are more than a hundred. */
function Whole({ row: { method, path, of }, schemas }: { row: Row; schemas: Record<string, Schema> }) {
  const body = of.requestBody && schemaOf(of.requestBody.content);
  const [status, answer] = Object.entries(of.responses).find(([code]) => code.startsWith("2")) ?? [];
  const gives = answer?.content && schemaOf(answer.content);
  const codes = Object.entries(of.responses).flatMap(([code, one]) => (one["x-codes"] ?? []).map((word) => `${code} ${word}`));
  const parameters = (of.parameters ?? []).filter(({ name }) => name !== "namespace");
  const curl = curlOf(method, path, of, schemas);
  return (
    <div class="operation">
      {of.description && <p class="prose">{of.description.replaceAll("`", "")}</p>}
      <p class="quiet">{of["x-roles"]?.length ? `For the roles ${of["x-roles"].join(", ")}.` : "For everybody, without a token."}</p>
      <div class="curl">
        <pre tabIndex={0}>{curl}</pre>
        <Copy text={curl} label="Copy as curl" />
      </div>
      {parameters.length > 0 && (
        <>
          <h3>Parameters</h3>
          <dl class="members">
            {parameters.map((one) => (
              <Member key={one.name} name={one.name} required={one.required ?? false} schema={one.schema} where={one.in} text={one.description} />
            ))}
          </dl>
        </>
      )}
      {body && <Members title="Body" of={body} schemas={schemas} />}
      {gives && <Members title={`Answer ${status}`} of={gives} schemas={schemas} />}
      {codes.length > 0 && (
        <>
          <h3>Refusals</h3>
          <p class="quiet">{codes.join(" · ")}</p>
        </>
      )}
    </div>
  );
}

function Member({ name, required, schema, where, text }: { name: string; required: boolean; schema: Schema; where?: string; text?: string | undefined }) {
  return (
    <>
      <dt>
        <code>{name}</code>
        {required && <span class="tone-warn"> required</span>}
      </dt>
      <dd>
        <span class="quiet">
          {typeOf(schema)}
          {where && where !== "query" && `, in the ${where}`}
          {schema.default !== undefined && `, default ${JSON.stringify(schema.default)}`}
        </span>{" "}
        {(text ?? schema.description)?.replaceAll("`", "")}
      </dd>
    </>
  );
}

function Members({ title, of, schemas }: { title: string; of: Schema; schemas: Record<string, Schema> }) {
  const whole = resolved(of, schemas);
  const items = whole.properties?.items?.items; // of a page
  const shown = items ? resolved(items, schemas) : whole;
  return (
    <>
      <h3>
        {title} <span class="quiet">{items ? `page of ${typeOf(items)}` : typeOf(of)}</span>
      </h3>
      {shown.properties && (
        <dl class="members">
          {Object.entries(shown.properties).map(([name, schema]) => (
            <Member key={name} name={name} required={title === "Body" && (shown.required?.includes(name) ?? false)} schema={schema} />
          ))}
        </dl>
      )}
    </>
  );
}

const schemaOf = (content: Content): Schema | undefined => Object.values(content)[0]?.schema;
const resolved = (of: Schema, schemas: Record<string, Schema>): Schema => (of.$ref ? (schemas[of.$ref.split("/").pop() ?? ""] ?? of) : of);

function typeOf(of: Schema): string {
  if (of.$ref) return of.$ref.split("/").pop() ?? "";
  if (of.const !== undefined) return JSON.stringify(of.const);
  if (of.enum) return of.enum.map((one) => String(one)).join(" | ");
  const any = of.anyOf ?? of.oneOf;
  if (any) return [...new Set(any.map(typeOf))].join(" or ");
  if (of.type === "array") return `list of ${of.items ? typeOf(of.items) : "anything"}`;
  if (of.format === "date-time") return "instant";
  if (Array.isArray(of.type)) return of.type.join(" or ");
  return of.type ?? "anything";
}

/** Ready to paste; what must be given stands there in capitals. */
function curlOf(method: string, path: string, of: Operation, schemas: Record<string, Schema>): string {
  const url = `${location.origin}${base.replace(/\/$/, "")}${path.replace(/\{(\w+)\}/g, (_, name: string) => name.toUpperCase())}`;
  const parts = [`curl${method === "GET" ? "" : ` -X ${method}`}`];
  if (of["x-roles"]?.length) parts.push(`-H "Authorization: Bearer $MAINSPRING_TOKEN"`);
  const schema = of.requestBody && schemaOf(of.requestBody.content);
  if (schema) {
    const whole = resolved(schema, schemas);
    const needed = Object.fromEntries((whole.required ?? []).map((name) => [name, sample(whole.properties?.[name] ?? {}, name)]));
    parts.push(`-H "Content-Type: ${Object.keys(of.requestBody?.content ?? {})[0]}"`, `-d '${JSON.stringify(needed)}'`);
  }
  return [...parts, `"${url}"`].join(" \\\n  ");
}

function sample(of: Schema, name: string): unknown {
  const type = Array.isArray(of.type) ? of.type[0] : of.type;
  if (of.enum) return of.enum[0];
  return type === "integer" || type === "number" ? 1 : type === "boolean" ? true : type === "array" ? [] : type === "object" || of.$ref ? {} : name.toUpperCase();
}
