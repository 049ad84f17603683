// Values as people read them: states, instants, durations, JSON; each in one way everywhere.

import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { now, second } from "../core/clock";
import { zone } from "../core/prefs";
import { lookOf } from "../core/states";
import { LOCAL, milliseconds, relative, shown, span, zoneFor } from "../core/time";
import { toast } from "../core/actions";
import { Glyph, Icon } from "./icons";

/** Where there is nothing to say. */
export const NONE = <span class="none">–</span>;

/** A state as shape, colour and word. */
export function State({ of, title }: { of: string; title?: string | undefined }) {
  const look = lookOf(of);
  return (
    <span class={`state tone-${look.tone}`} title={title}>
      <Glyph name={look.glyph} />
      {look.word}
    </span>
  );
}

interface InstantProps {
  at: string | number | null | undefined;
  /** The zone of its schedule. */
  own?: string | null | undefined;
  ms?: boolean;
  /** "in 4 min" instead of the time of day; the title has both. */
  relative?: boolean;
  date?: "auto" | "always";
}

/** An instant in the chosen zone, with its offset; the title has all three zones and how far away it is. */
export function Instant({ at, own, ms, relative: isRelative, date }: InstantProps) {
  if (at === null || at === undefined) return NONE;
  const instant = typeof at === "number" ? at : Date.parse(at);
  const today = isRelative ? second.value : now();
  const how = { ms: ms ?? false, date: date ?? "auto" } as const;
  return (
    <time class="instant" dateTime={new Date(instant).toISOString()} title={everyZone(instant, own)}>
      {isRelative ? relative(instant, Math.max(today, second.value)) : shown(instant, zoneFor(zone.value, own), today, how)}
    </time>
  );
}

/** The same instant in the schedule's zone, mine and UTC, and how far away it is. */
export function everyZone(at: number, own?: string | null): string {
  const lines = [...new Set([own ?? LOCAL, LOCAL, "UTC"])].map((name) => `${shown(at, name, at, { ms: true, date: "always" })}  ${name}`);
  return [...lines, relative(at, now())].join("\n");
}

/** Seconds in words. */
export function Span({ seconds }: { seconds: number | null | undefined }) {
  return seconds === null || seconds === undefined ? NONE : <span class="number">{span(seconds)}</span>;
}

/** How late something was: calm below 10 ms, a warning above a second. */
export function Lateness({ ms }: { ms: number | null | undefined }) {
  if (ms === null || ms === undefined) return NONE;
  return <span class={ms >= 1000 ? "number late" : "number"}>{milliseconds(Math.max(0, ms))}</span>;
}

/** From its start to its end, or to now while it runs. */
export function Duration({ from, to }: { from: string | null | undefined; to: string | null | undefined }) {
  if (!from) return NONE;
  const end = to ? Date.parse(to) : Math.max(second.value, now());
  return <span class="number">{span(Math.max(0, end - Date.parse(from)) / 1000)}</span>;
}

/** JSON that folds: text is text, never HTML. */
export function Json({ of, open = true }: { of: unknown; open?: boolean }) {
  return <div class="json">{node(of, open, 0)}</div>;
}

function node(value: unknown, open: boolean, depth: number): ComponentChildren {
  if (value === null || typeof value !== "object") return <span class={`json-${value === null ? "null" : typeof value}`}>{JSON.stringify(value) ?? "undefined"}</span>;
  const isList = Array.isArray(value);
  const entries = Object.entries(value);
  if (!entries.length) return <span>{isList ? "[]" : "{}"}</span>;
  return <Folded entries={entries} isList={isList} open={open && depth < 3} depth={depth} />;
}

const MOST = 200; // members of one object that are drawn at once

function Folded({ entries, isList, open, depth }: { entries: [string, unknown][]; isList: boolean; open: boolean; depth: number }) {
  const [isOpen, setOpen] = useState(open && entries.length <= 50);
  const [most, setMost] = useState(MOST);
  const words = many(entries.length, isList ? "item" : "member");
  return (
    <>
      <button type="button" class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {isList ? "[" : "{"} <span class="quiet">{isOpen ? "" : `${words} `}</span>
        {isOpen ? "" : isList ? "]" : "}"}
      </button>
      {isOpen && (
        <ul>
          {entries.slice(0, most).map(([name, member]) => (
            <li key={name}>
              {!isList && <span class="json-name">{name}: </span>}
              {node(member, open, depth + 1)}
            </li>
          ))}
          {entries.length > most && (
            <li>
              <button type="button" class="link" onClick={() => setMost(most + 1000)}>
                {entries.length - most} more
              </button>
            </li>
          )}
        </ul>
      )}
      {isOpen && <span>{isList ? "]" : "}"}</span>}
    </>
  );
}

/** The API's words, with what is to be typed set off: "run `mainspring migrate`". */
export const withCode = (words: string): ComponentChildren => words.split(/`([^`]+)`/).map((part, place) => (place % 2 ? <code>{part}</code> : part));

/** A command to copy: `mainspring task submit hello`. */
export function Command({ children }: { children: string }) {
  return (
    <span class="command">
      <code>{children}</code>
      <Copy text={children} />
    </span>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch {
      toast({ kind: "told", text: "This browser does not let a page copy here; select the text.", detail: text });
    }
  };
  return (
    <button type="button" class="icon-button" aria-label={isDone ? "Copied" : label} title={label} onClick={copy}>
      <Icon name={isDone ? "check" : "copy"} />
    </button>
  );
}

/** "1 task", "12 tasks", "1,204 tasks". */
export const many = (count: number, one: string, more = `${one}s`): string => `${count.toLocaleString("en-GB")} ${count === 1 ? one : more}`;

/** A link to the page of one thing, by its name or number. */
export function To({ page, of }: { page: "agents" | "batches" | "jobs" | "schedules" | "tasks"; of: string | number | null | undefined }) {
  return of === null || of === undefined ? NONE : <a href={`${page}/${encodeURIComponent(of)}`}>{of}</a>;
}
