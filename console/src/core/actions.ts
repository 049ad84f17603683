// Changes: each once per click, each told in the API's words, with a way back where there is one.

import { signal } from "./signals";
import { call, newKey, Refusal, whyNot } from "./api";
import type { Answer, Name, Rank, Sent } from "./api";
import type { Params } from "./router";

export interface Toast {
  id: number;
  kind: "done" | "refused" | "told";
  text: string;
  detail?: string | undefined;
  undo?: (() => Promise<unknown>) | undefined;
}

export const toasts = signal<Toast[]>([]);
let last = 0;
const STAYS = 8_000; // ms; what was refused stays until it is closed

export function toast(given: Omit<Toast, "id">): void {
  const id = (last += 1);
  toasts.value = [...toasts.value.slice(-3), { ...given, id }];
  if (given.kind !== "refused") setTimeout(() => dismiss(id), STAYS);
}

/** Why it is not done: "Not possible: needs the role admin; yours is viewer." */
export const refuse = (why: string): void => toast({ kind: "told", text: `Not possible: ${why}.` });

/** Do what needs a role, or tell why not. */
export function asRole(needed: Rank, run: () => unknown): void {
  const why = whyNot(needed);
  if (why) refuse(why);
  else run();
}

export function dismiss(id: number): void {
  toasts.value = toasts.value.filter((one) => one.id !== id);
}

/** Tell of a refusal: message, code and request id. */
export function tellRefusal(error: unknown): void {
  if (!(error instanceof Refusal)) {
    console.error(error);
    toast({ kind: "refused", text: String(error) });
    return;
  }
  const detail = [error.code, error.requestId && `request ${error.requestId}`].filter(Boolean).join(" · ");
  toast({ kind: "refused", text: error.message, detail });
}

export interface Act<N extends Name> {
  params?: Params;
  body?: unknown;
  how?: Sent;
  /** What it did, in words. */
  said: (answer: Answer<N>) => string;
  undo?: (answer: Answer<N>) => Promise<unknown>;
  then?: (answer: Answer<N>) => void;
}

const AGAIN = [400, 1200, 3000]; // ms before a change is sent again that no server has answered

/** Send a change. The key makes it safe to send it again: it is carried out once, whichever answer was lost. */
export async function send<N extends Name>(name: N, params?: Params, body?: unknown, how: Sent = {}): Promise<Answer<N>> {
  const isPost = name.startsWith("POST");
  const sent = { ...(isPost ? { key: newKey() } : {}), ...how };
  for (let failed = 0; ; failed += 1) {
    try {
      return await call(name, params, body, sent);
    } catch (error) {
      const wait = AGAIN[failed];
      const isLost = error instanceof Refusal && (error.status === 0 || error.status === 502 || error.status === 504);
      if (!isPost || !isLost || wait === undefined || sent.signal?.aborted) throw error;
      await new Promise((done) => setTimeout(done, wait));
    }
  }
}

/** Carry out a change and tell what it did. Its answer, or null if it was refused. */
export async function act<N extends Name>(name: N, given: Act<N>): Promise<Answer<N> | null> {
  try {
    const answer = await send(name, given.params, given.body, given.how);
    const undo = given.undo;
    toast({ kind: "done", text: given.said(answer), undo: undo && (() => undo(answer)) });
    given.then?.(answer);
    return answer;
  } catch (error) {
    tellRefusal(error);
    return null;
  }
}
