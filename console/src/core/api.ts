// The public API, typed by its own description: call("GET /tasks/{id}", { id: 17 }).

import { signal } from "./signals";
import { base, search } from "./router";
import type { Params } from "./router";
import type { Operations, Problem, SessionView } from "./schema";

export type Name = keyof Operations;
export type Answer<N extends Name> = Operations[N]["answer"];

/** Who is logged in; null before that is known, and after a log-out. */
export const session = signal<SessionView | null>(null);

/** ms after which an unanswered request is repeated. */
export const AGAIN = 4000;

/** A refusal, in the API's own words: message, code and request id. */
export class Refusal extends Error {
  constructor(
    readonly problem: Omit<Partial<Problem>, "code"> & { message: string; code: string },
    readonly status: number,
    readonly requestId: string | null,
  ) {
    super(problem.message);
  }
  get code(): string {
    return this.problem.code;
  }
  /** Nobody answers now: it is worth asking again. */
  get isPassing(): boolean {
    return this.status === 503 || this.code === "unreachable";
  }
}

/** What was thrown, as a refusal: a fault of the console itself is told as one, and logged. */
export function asRefusal(error: unknown): Refusal {
  if (error instanceof Refusal) return error;
  console.error(error);
  return ownFault(String(error));
}

/** A fault of the console itself. */
export const ownFault = (message: string): Refusal => new Refusal({ code: "console", message }, 0, null);

export interface Sent {
  /** Carries out a change once, however often it is sent: a new one for each click. */
  key?: string;
  ifMatch?: number;
  ifNew?: boolean;
  signal?: AbortSignal;
  accept?: string;
}

/** The address of an operation: names fill the path, the rest becomes the query. */
export function urlOf(name: Name, params: Params = {}): string {
  const rest: Params = { ...params };
  const [, template = ""] = name.split(" ");
  const path = template.replace(/\{(\w+)\}/g, (_, key: string) => {
    const value = rest[key];
    delete rest[key];
    return encodeURIComponent(String(value));
  });
  const query = search(rest);
  return `${base}api/v1${path}${query ? `?${query}` : ""}`;
}

export async function call<N extends Name>(
  name: N,
  params: Params = {},
  body?: unknown,
  how: Sent = {},
): Promise<Answer<N>> {
  const method = name.split(" ")[0] ?? "GET";
  const headers: Record<string, string> = { Accept: how.accept ?? "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && session.value?.csrf) headers["Mainspring-CSRF"] = session.value.csrf;
  if (how.key) headers["Idempotency-Key"] = how.key;
  if (how.ifMatch !== undefined) headers["If-Match"] = `"v${how.ifMatch}"`;
  if (how.ifNew) headers["If-None-Match"] = "*";
  let answer: Response;
  try {
    const given = { method, headers, body: body === undefined ? null : JSON.stringify(body), signal: how.signal ?? null };
    answer = await fetch(urlOf(name, params), given);
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Refusal({ code: "unreachable", message: "the server does not answer; is it running?" }, 0, null);
  }
  if (answer.ok) return (answer.status === 204 ? null : await answer.json()) as Answer<N>;
  throw await refusalOf(answer);
}

async function refusalOf(answer: Response): Promise<Refusal> {
  const requestId = answer.headers.get("Mainspring-Request-Id");
  let problem: Partial<Problem> = {};
  try {
    problem = await answer.json();
  } catch {
    // a proxy answered, with a page of its own
  }
  if (answer.status === 401) session.value = null;
  const message = problem.message ?? `the server answered ${answer.status}`;
  return new Refusal({ ...problem, code: problem.code ?? `http_${answer.status}`, message }, answer.status, requestId);
}

/** A key that no other click has. `randomUUID` needs HTTPS or localhost; this does not. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const RANKS = ["viewer", "submitter", "operator", "admin"] as const;
export type Rank = (typeof RANKS)[number];

/** Why the one who is logged in may not do what needs this role; null if they may. */
export function whyNot(needed: Rank): string | null {
  const role = session.value?.role ?? "viewer";
  const has = RANKS.indexOf(role as Rank);
  return has >= RANKS.indexOf(needed) ? null : `needs the role ${needed}; yours is ${role}`;
}
