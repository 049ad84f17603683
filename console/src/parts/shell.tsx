// The frame of the console: where one can go, whether it is live, in whose time, and who is logged in.

import { Fragment } from "preact";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { firing, MOST_COUNTED } from "../core/alerts";
import { call, session } from "../core/api";
import { ahead } from "../core/clock";
import { bindings, useKeys } from "../core/keys";
import { liveness } from "../core/live";
import { letters, theme, THEMES, zone } from "../core/prefs";
import { useGet } from "../core/query";
import { visit } from "../core/recent";
import { go, path } from "../core/router";
import { LOCAL, shown, span } from "../core/time";
import { Choice, Dialog, Toasts } from "./controls";
import { HoldDialog, HoldLine, release } from "./hold";
import { Icon } from "./icons";
import type { IconName } from "./icons";
import { Instant } from "./show";
import { Palette } from "./palette";
import type { Command } from "./palette";

const PLACES: readonly (readonly [string, string, IconName, string?])[] = [
  ["", "Overview", "overview", "g o"],
  ["schedules", "Schedules", "schedules", "g s"],
  ["tasks", "Tasks", "tasks", "g t"],
  ["jobs", "Jobs", "jobs", "g j"],
  ["timeline", "Timeline", "timeline"],
  ["calendar", "Calendar", "calendar", "g c"],
  ["batches", "Batches", "batches", "g b"],
  ["agents", "Fleet", "agents", "g a"],
  ["daemons", "Daemons", "daemons"],
  ["cluster", "Cluster", "cluster"],
  ["alerts", "Alerts", "alerts"],
  ["activity", "Activity", "activity"],
  ["access", "Access", "access"],
  ["settings", "Settings", "settings"],
  ["api-reference", "API", "api"],
];
const ZONE_WORDS = [
  ["schedule", "Schedule's zone"],
  ["local", "Mine"],
  ["utc", "UTC"],
] as const;
const GROUPS = [4, 7, 11, PLACES.length]; // where a line is drawn between them

/** Whether what is shown is live; while it is not, figures are grey. */
function LiveDot() {
  const now = liveness.value;
  const words =
    now.state === "lost"
      ? `not live since ${shown(now.since + ahead.value, LOCAL, now.since + ahead.value).split(" ")[0]}, trying again`
      : now.state === "off"
        ? "not live: nothing here changes by itself"
        : now.state;
  useEffect(() => {
    document.documentElement.dataset.live = now.state;
  }, [now.state]);
  return (
    <span class={`live-dot ${now.state.replace(" ", "-")}`} role="status" title={words}>
      <span aria-hidden="true" />
      <span class={now.state === "lost" ? "" : "drop-2"}>{now.state === "off" ? "still" : words}</span>
    </span>
  );
}

/** Why it is not live: once for the whole page, so that not each part of it has to say so. */
function AwayLine() {
  const now = liveness.value;
  if (now.state !== "lost") return null;
  return (
    <p class="line bad" role="alert">
      {now.why}. Below is what was known at <Instant at={new Date(now.since + ahead.value).toISOString()} />; it is loaded again by itself.
    </p>
  );
}

function Zones() {
  return <Choice label="Show times in" of={ZONE_WORDS} value={zone.value} set={(value) => (zone.value = value)} />;
}

/** How many alerts fire, beside their page. */
function Firing() {
  const mayRead = session.value !== null && session.value.role !== "submitter";
  const found = useGet("GET /alerts", mayRead ? { state: "firing", limit: MOST_COUNTED } : null, { topics: mayRead ? ["alerts"] : [] });
  const many = found.data?.items.length ?? null;
  useEffect(() => {
    firing.value = many;
  }, [many]);
  if (!many) return null;
  return (
    <span class="badge firing figure">
      {many}
      {found.data?.next && "+"}
      <span class="hidden"> firing</span>
    </span>
  );
}

function ClockLine() {
  const off = ahead.value / 1000;
  if (Math.abs(off) <= 2) return null;
  return (
    <p class="line warn" role="note">
      This browser's clock is {span(Math.abs(off))} {off > 0 ? "behind" : "ahead of"} the database's. What is shown is the database's time.
    </p>
  );
}

function Help({ close }: { close: () => void }) {
  const all = bindings();
  const groups = [
    ["On this page", all.filter(({ everywhere }) => !everywhere)],
    ["Everywhere", all.filter(({ everywhere }) => everywhere)],
  ] as const;
  return (
    <Dialog title="Keys" close={close}>
      {groups.map(
        ([title, its]) =>
          its.length > 0 && (
            <section key={title} aria-label={title}>
              <h3>{title}</h3>
              <dl class="keys">
                {[...new Map(its.map(({ keys, does }) => [keys, does]))].map(([keys, does]) => (
                  <Fragment key={keys}>
                    <dt>
                      {keys.split(" ").map((key) => (
                        <kbd key={key}>{key.replace("mod+", "Ctrl/⌘ ")}</kbd>
                      ))}
                    </dt>
                    <dd>{does}</dd>
                  </Fragment>
                ))}
              </dl>
            </section>
          ),
      )}
      <label class="check">
        <input type="checkbox" checked={letters.value === "on"} onChange={(event) => (letters.value = event.currentTarget.checked ? "on" : "off")} /> single letters work as keys
      </label>
    </Dialog>
  );
}

export function Shell({ children }: { children: ComponentChildren }) {
  const [isOpen, setOpen] = useState(false);
  const [shows, setShows] = useState<"help" | "palette" | "hold" | null>(null);
  const menu = useRef<HTMLButtonElement>(null);
  const who = session.value;
  const here = path.value.split("/")[0] ?? "";
  useEffect(() => {
    setOpen(false);
    visit(path.value);
  }, [path.value]);
  useEffect(() => {
    if (isOpen) document.querySelector<HTMLElement>("#places a")?.focus();
  }, [isOpen]);
  useKeys([
    ...PLACES.flatMap(([to, word, , keys]) => (keys ? [{ keys, does: `go to ${word}`, everywhere: true, run: () => go(to || ".") }] : [])),
    { keys: "?", does: "show all keys", everywhere: true, run: () => setShows("help") },
    { keys: "mod+k", does: "find anything", everywhere: true, run: () => setShows("palette") },
    { keys: "/", does: "filter", everywhere: true, run: () => document.querySelector<HTMLElement>("[data-filter]")?.focus() },
    ...(isOpen ? [{ keys: "Escape", does: "close the menu", everywhere: true, run: () => (setOpen(false), menu.current?.focus()) }] : []),
  ]);
  const logOut = async () => {
    await call("DELETE /session");
    session.value = null;
  };
  const commands: Command[] = [
    { word: "New schedule", needs: "admin", run: () => go("new/schedule") },
    { word: "Hold everything", needs: "operator", run: () => setShows("hold") },
    { word: "Release everything", needs: "operator", run: () => release(null) },
    ...THEMES.map((one) => ({ word: `Theme ${one}`, run: () => (theme.value = one) })),
    ...ZONE_WORDS.map(([one, word]) => ({ word: `Times in ${word === "UTC" ? word : word.toLowerCase()}`, run: () => (zone.value = one) })),
    { word: `Single letters as keys ${letters.value === "on" ? "off" : "on"}`, run: () => (letters.value = letters.value === "on" ? "off" : "on") },
    { word: "Show all keys", run: () => setShows("help") },
    { word: "Log out", run: logOut },
  ];
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "system";
  return (
    <div class={who?.environment ? "shell banded" : "shell"}>
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), document.getElementById("content")?.focus())}>
        Skip to content
      </a>
      {who?.environment && (
        <aside class="band" aria-label="Environment">
          {who.environment}
        </aside>
      )}
      <header class="top">
        <button ref={menu} type="button" class="icon-button menu-button" aria-label="Menu" aria-expanded={isOpen} aria-controls="places" onClick={() => setOpen(!isOpen)}>
          <Icon name="menu" />
        </button>
        <a class="brand" href="." aria-label="Mainspring, overview">
          <img src="static/icon.svg" alt="" width="22" height="22" />
          <span>Mainspring</span>
        </a>
        <LiveDot />
        <span class="grow" />
        <button type="button" class="find" title="Find anything" aria-keyshortcuts="Control+K" onClick={() => setShows("palette")}>
          <Icon name="search" />
          <span class="drop-2">Find anything</span>
          <kbd class="drop-2" aria-hidden="true">
            Ctrl K
          </kbd>
        </button>
        <div class="wide-only">
          <Zones />
        </div>
        <button type="button" class="icon-button" aria-label={`Theme: ${theme.value}; change to ${next}`} title={`Theme: ${theme.value}`} onClick={() => (theme.value = next)}>
          <Icon name={theme.value === "dark" ? "moon" : theme.value === "light" ? "sun" : "contrast"} />
        </button>
      </header>
      <nav id="places" class={isOpen ? "places open" : "places"} aria-label="Pages">
        <ul>
          {PLACES.map(([to, word, icon], place) => (
            <li key={to} class={GROUPS.includes(place) ? "group" : ""}>
              <a href={to || "."} aria-current={here === to ? "page" : undefined}>
                <Icon name={icon} />
                {word}
                {to === "alerts" && <Firing />}
              </a>
            </li>
          ))}
        </ul>
        <div class="narrow-only">
          <Zones />
        </div>
        <div class="who">
          <Icon name="user" />
          <span title={who ? `${who.name}, ${who.role}` : ""}>
            {who?.name}
            <span class="quiet">{who?.role}</span>
          </span>
          <button type="button" class="link" onClick={logOut}>
            Log out
          </button>
        </div>
      </nav>
      <main id="content" tabIndex={-1} inert={isOpen}>
        <AwayLine />
        <HoldLine />
        <ClockLine />
        {children}
      </main>
      <Toasts />
      {shows === "help" && <Help close={() => setShows(null)} />}
      {shows === "palette" && <Palette places={PLACES} commands={commands} close={() => setShows(null)} />}
      {shows === "hold" && <HoldDialog job={null} close={() => setShows(null)} />}
    </div>
  );
}
