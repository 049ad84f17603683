// What this browser has looked at last: the palette offers it first.

import { signal } from "./signals";

export interface Visited {
  to: string;
  word: string;
  kind: string;
}

const KEY = "mainspring.recent";
const MOST = 8;
const KINDS: Record<string, string> = { tasks: "task", jobs: "job", schedules: "schedule", agents: "agent", batches: "batch" };

export const recent = signal<Visited[]>(stored());

function stored(): Visited[] {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]") as unknown;
    return Array.isArray(found) ? found.filter((one: Visited) => KINDS[one.to?.split("/")[0] ?? ""] && typeof one.word === "string").slice(0, MOST) : [];
  } catch {
    return []; // no storage, or not ours
  }
}

/** Note that a page was looked at; only those of single things count. */
export function visit(path: string): void {
  const [place = "", name, ...rest] = path.split("/");
  const kind = KINDS[place];
  if (!kind || !name || rest.length) return;
  const word = kind === "task" || kind === "batch" ? `${kind === "task" ? "Task" : "Batch"} ${name}` : decodeURIComponent(name);
  recent.value = [{ to: path, word, kind }, ...recent.value.filter(({ to }) => to !== path)].slice(0, MOST);
  try {
    localStorage.setItem(KEY, JSON.stringify(recent.value));
  } catch {
    // it lasts as long as the page
  }
}
