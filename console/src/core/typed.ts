// What was typed into a form → the arguments of a task, by the types of the handler's parameters.

import type { Argument } from "./schema";

export interface Read {
  args: Record<string, unknown>;
  /** By the name of the argument. */
  faults: Record<string, string>;
}

/** What is empty is left out: the handler has a default, or it must be given. */
export function read(known: readonly Argument[], typed: Record<string, string>): Read {
  const args: Record<string, unknown> = {};
  const faults: Record<string, string> = {};
  for (const { name, type = "any", required = false } of known) {
    const text = typed[name] ?? "";
    if (!text.trim() && !(type === "string" && text)) {
      if (required) faults[name] = "must be given";
      continue;
    }
    if (type === "string") args[name] = text;
    else if (type === "boolean") args[name] = text === "true";
    else if (type === "any") args[name] = anything(text);
    else {
      const number = Number(text);
      if (!Number.isFinite(number) || (type === "integer" && !Number.isInteger(number))) faults[name] = type === "integer" ? "a whole number" : "a number";
      else args[name] = number;
    }
  }
  return { args, faults };
}

/** JSON if it can be read as that, else the text itself. */
function anything(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

/** An object of JSON; a fault in words otherwise. */
export function readObject(text: string): { args: Record<string, unknown> } | { fault: string } {
  if (!text.trim()) return { args: {} };
  try {
    const found = JSON.parse(text) as unknown;
    if (found === null || typeof found !== "object" || Array.isArray(found)) return { fault: 'give an object, such as {"shop": 7}' };
    return { args: found as Record<string, unknown> };
  } catch (error) {
    return { fault: (error as Error).message };
  }
}

/** A pattern of a name: what is typed without * is looked for anywhere in it. */
export const anywhere = (text: string): string => (!text || text.includes("*") ? text : `*${text}*`);

/** Words with commas or spaces between them. */
export const list = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);
