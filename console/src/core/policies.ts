// The policies of a job in words: what happens when it fails, takes too long, has company, or is old.

import { quote } from "./commands";
import type { Definition, Limits, Placement, Retry } from "./schema";
import { count, span } from "./time";

const NAMED: Record<number, string> = { 2: "low", 5: "normal", 7: "high", 9: "critical" };
const PER: Record<number, string> = { 1: "second", 60: "minute", 3600: "hour", 86400: "day" };
const DELIVERIES = {
  at_least_once: "at least once: an attempt that is lost runs again",
  at_most_once: "at most once: an attempt that is lost does not run again",
  effectively_once: "effectively once: a lost attempt runs again, its result counts once",
};

/** What a job runs, in one line. */
export function runOf({ run }: Definition): string {
  if (run.type === "command") return run.argv.map(quote).join(" ");
  return run.type === "http" ? `${run.method} ${run.url}` : `${run.handler}(${(run.arguments ?? []).map(({ name }) => name).join(", ")})`;
}

export const priorityOf = (level: number): string => (NAMED[level] ? `${NAMED[level]} (${level})` : String(level));

/** Names and sentences; a default is mentioned where it could surprise. */
export function policies(given: Definition): [string, string][] {
  const found: [string, string | null][] = [
    ["Retries", retries(given.retry ?? {}, given.retries_by_default ?? false)],
    ["Timeout", given.timeout ? `an attempt is stopped after ${span(given.timeout)}` : "the cluster's default_timeout"],
    ["Stall", given.stalls_after ? `stopped after ${span(given.stalls_after)} without a sign of life` : null],
    ["Grace", `${span(given.grace ?? 5)} between the request to stop and the kill`],
    ["Delivery", DELIVERIES[given.delivery ?? "at_least_once"]],
    ["Priority", priorityOf(given.priority ?? 5)],
    ["Placement", placement(given.placement ?? {}, given.requires ?? {})],
    ["Expiry", given.expires ? `skipped if it has not started ${span(given.expires)} after its time` : null],
    ["Retention", retention(given)],
    ["Chunk", given.run.type === "python" && given.run.chunk ? `one call takes up to ${given.run.chunk} tasks` : null],
    ["Health", given.health ? `${given.health.url ?? (given.health.argv ?? []).join(" ")}, every ${span(given.health.every ?? 10)}` : null],
  ];
  return found.filter((one): one is [string, string] => one[1] !== null);
}

function retries(given: Retry, isDefault: boolean): string {
  const most = given.retries ?? 3;
  const only = given.retry_on?.length ? `, only after ${given.retry_on.join(", ")}` : "";
  const never = given.abort_on?.length ? `, never after ${given.abort_on.join(", ")}` : "";
  const named = isDefault ? ", unless the setting default_retries says otherwise" : "";
  if (!most) return `none${named}`;
  const times = `${most} more ${most === 1 ? "attempt" : "attempts"}`;
  if (given.delays?.length) return `${times}, after ${given.delays.map((one) => span(one)).join(", ")}${only}${never}${named}`;
  const ways = { fixed: "each after", linear: "each later by", exponential: "each twice as late, from", jitter: "each later, at random, from" };
  return `${times}, ${ways[given.backoff ?? "jitter"]} ${span(given.delay ?? 1)}${only}${never}${named}`;
}

function placement(given: Placement, requires: Record<string, string>): string {
  const labels = Object.entries(requires).map(([name, value]) => `${name}=${value}`);
  const needs = Object.entries(given.needs ?? {}).map(([name, amount]) => `${count(amount)} ${name}`);
  const prefer = Object.entries(given.prefer ?? {}).map(([name, value]) => `${name}=${value}`);
  return [
    given.broadcast ? "once on every agent" : "on one agent",
    labels.length ? `with ${labels.join(", ")}` : "",
    needs.length ? `that has ${needs.join(", ")} free` : "",
    prefer.length ? `rather with ${prefer.join(", ")}` : "",
    given.sticky ? `the same for equal ${given.sticky}` : "",
    given.strategy ? `by ${given.strategy}` : "",
  ]
    .filter(Boolean)
    .join(", ");
}

function retention({ keep_succeeded, keep_failed }: Definition): string | null {
  const parts = [keep_succeeded && `${span(keep_succeeded)} if it succeeded`, keep_failed && `${span(keep_failed)} if it failed`].filter(Boolean);
  return parts.length ? `kept ${parts.join(", ")}` : null;
}

/** "100 a minute, at most 5 at once, for each key". */
export function rateOf({ rate }: Limits): string | null {
  if (!rate) return null;
  const burst = (rate.burst ?? 1) > 1 ? `, up to ${rate.burst} at once after a pause` : "";
  return `${count(rate.count)} starts a ${PER[rate.per] ?? span(rate.per)}${burst}${rate.per_key ? ", for each key" : ""}`;
}
