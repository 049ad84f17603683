// What was done here, as something to type: the command line's and curl's way to the same list and the same action.

import { urlOf } from "./api";
import type { Name } from "./api";
import type { Params } from "./router";

/** A word for a shell. */
export const quote = (word: string): string => (/^[\w@%+=:,./*-]+$/.test(word) && !word.includes("*") ? word : `'${word.replaceAll("'", `'\\''`)}'`);

export const cli = (...given: (string | number)[]): string => ["mainspring", ...given.map(String)].map(quote).join(" ");

const FLAGS: Record<string, string> = { created_after: "--since", created_before: "--until", run_after: "--due-after", run_before: "--due-before" };

/** `mainspring task list` with these filters; the numbers of tasks are shown one by one. */
export function listCommand(params: Params): string {
  const ids = params.id as string[] | undefined;
  if (ids?.length) return ids.map((id) => cli("task", "show", id)).join(" && ");
  const given: string[] = [];
  for (const [name, value] of Object.entries(params)) {
    const values = value as string[];
    if (name === "args") for (const [path, wanted] of Object.entries(JSON.parse(values[0] ?? "{}") as object)) given.push("--arg", `${path}=${String(wanted)}`);
    else for (const one of values) given.push(FLAGS[name] ?? `--${name.replaceAll("_", "-")}`, one);
  }
  return cli("task", "list", ...given);
}

/** The same request by curl; the token is not ours to show. */
export function curl(name: Name, params: Params = {}, body?: unknown): string {
  const method = name.split(" ")[0] ?? "GET";
  const url = new URL(urlOf(name, params), typeof location === "undefined" ? "http://localhost" : location.href).href;
  const words = ["curl", ...(method === "GET" ? [] : ["-X", method]), "-H", '"Authorization: Bearer $TOKEN"'];
  if (body !== undefined) words.push("-H", '"Content-Type: application/json"', "-d", quote(JSON.stringify(body)));
  return [...words, quote(url)].join(" ");
}
