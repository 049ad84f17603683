// Why? The story of one plan time: whether it was expected, what was decided, and what came of it; or why it stopped.

import { useState } from "preact/hooks";
import { act } from "../core/actions";
import { now } from "../core/clock";
import { explained } from "../core/explained";
import { useKeys } from "../core/keys";
import { zone } from "../core/prefs";
import { useGet } from "../core/query";
import { go, link, withQuery } from "../core/router";
import type { Names } from "../core/router";
import type { FireStory, Step, Story } from "../core/schema";
import { isEnded, lookOf } from "../core/states";
import type { Look } from "../core/states";
import { milliseconds, shown, wall, zoneFor } from "../core/time";
import { Action, Field } from "../parts/controls";
import { Glyph, Icon } from "../parts/icons";
import { Page, Section, Show } from "../parts/page";
import { everyZone, Instant, many, withCode } from "../parts/show";

export default function Explain({ names }: { names: Names }) {
  const { name = "", time = "" } = names;
  // with an offset an instant; without, what the schedule's clocks show
  const isInstant = /(Z|[+-]\d\d:?\d\d)$/.test(time);
  const told = useGet("GET /schedules/{name}/explain", { name, [isInstant ? "at" : "local"]: time }, { topics: ["tasks", "schedules"] });
  const stories = told.data?.plan_times ?? [];
  const own = told.data?.timezone ?? null;
  const before = stories[0]?.before ?? null;
  const after = stories.at(-1)?.after ?? null;
  const to = (at: string | null) => at && go(explained(name, at));
  useKeys([
    { keys: "[", does: "the plan time before", run: () => to(before) },
    { keys: "]", does: "the plan time after", run: () => to(after) },
    { keys: "ArrowLeft", does: "the plan time before", run: () => to(before) },
    { keys: "ArrowRight", does: "the plan time after", run: () => to(after) },
  ]);
  const first = stories[0];
  const title = first && !first.asked ? shown(Date.parse(first.plan_time), zoneFor(zone.value, own), now(), { date: "always" }) : time.replace("T", " ");
  return (
    <Page title={title} trail={[["Schedules", "schedules"], [name, link`schedules/${name}`]]} remark={own && (first && !first.asked && own !== zoneFor(zone.value, own) ? `${shown(Date.parse(first.plan_time), own, now(), { date: "always" })} in ${own}` : `in ${own}`)}>
      <nav class="p-neighbours" aria-label="Neighbours">
        {before ? (
          <a href={explained(name, before)} rel="prev">
            <Icon name="left" /> <Instant at={before} own={own} /> <kbd class="drop-3">[</kbd>
          </a>
        ) : (
          <span class="quiet">{first && "none before"}</span>
        )}
        {after ? (
          <a href={explained(name, after)} rel="next">
            <kbd class="drop-3">]</kbd> <Instant at={after} own={own} /> <Icon name="right" />
          </a>
        ) : (
          <span class="quiet">{first && "none after"}</span>
        )}
      </nav>
      <Show of={told}>
        {({ plan_times, timezone }) => (
          <>
            {plan_times.length > 1 && (
              <p class="line" role="note">
                {title} comes twice in {timezone}: the clocks are set back. Both are told.
              </p>
            )}
            {plan_times.map((story) => (
              <TheStory key={story.plan_time} story={story} schedule={name} own={timezone} isOne={plan_times.length === 1} refresh={told.refresh} />
            ))}
          </>
        )}
      </Show>
      <Ask schedule={name} own={own} time={time} />
    </Page>
  );
}

function TheStory({ story, schedule, own, isOne, refresh }: { story: Story; schedule: string; own: string; isOne: boolean; refresh: () => void }) {
  const at = Date.parse(story.plan_time);
  const hasTask = story.fires.some((fire) => fire.task_id !== null);
  const why =
    story.status === "not_expected" ? "it is no plan time of the schedule" : at > now() ? "it lies in the future" : hasTask ? "it has a task already: retry that" : null;
  const run = () =>
    act("POST /schedules/{name}/backfill", {
      params: { name: schedule },
      body: { from: new Date(at).toISOString(), to: new Date(at + 1).toISOString(), max_parallel: 1000 },
      said: ({ submitted }) => (submitted.length ? `Submitted ${submitted.length === 1 ? `task ${submitted[0]}` : many(submitted.length, "task")} for this plan time.` : "Nothing was submitted: it has a task already."),
      then: refresh,
    });
  const single = story.fires.length === 1 ? story.fires[0] : undefined;
  return (
    <article class="p-story" aria-label={`The story of ${story.plan_time}`}>
      {!isOne && (
        <h2 class="p-scope">
          <Instant at={at} own={own} date="always" />
        </h2>
      )}
      <p class="p-sentence">{withCode(story.sentence)}.</p>
      <ol class="p-steps">
        {story.steps.map((step, place) => (
          <TheStep key={place} step={step} of={at} schedule={schedule} own={own} />
        ))}
        {single?.steps.map((step, place) => <TheStep key={`fire ${place}`} step={step} of={at} schedule={schedule} own={own} />)}
      </ol>
      {!single &&
        story.fires.map((fire) => (
          <section key={fire.scope} aria-label={fire.scope || "without a scope"}>
            <h3 class="p-scope">{fire.scope || "without a scope"}</h3>
            <ol class="p-steps">
              {fire.steps.map((step, place) => (
                <TheStep key={place} step={step} of={at} schedule={schedule} own={own} />
              ))}
            </ol>
          </section>
        ))}
      {story.more_fires > 0 && <p class="quiet">and {many(story.more_fires, "more scope")}</p>}
      <div class="actions">
        {story.fires.filter((fire) => fire.task_id !== null).slice(0, 5).map((fire) => (
          <Retry key={fire.scope} fire={fire} refresh={refresh} />
        ))}
        <Action needs="operator" refused={why} run={run}>
          Run this plan time
        </Action>
        <a class="button plain" href={withQuery("timeline", { name: schedule, at: new Date(at).toISOString(), range: "1h" })}>
          Show in the timeline
        </a>
      </div>
    </article>
  );
}

function Retry({ fire, refresh }: { fire: FireStory; refresh: () => void }) {
  const id = fire.task_id ?? 0;
  const refused = fire.state === null ? "its task is not kept any longer" : isEnded(fire.state) ? null : `it is ${fire.state} now`;
  return (
    <Action
      needs="operator"
      refused={refused}
      run={() => act("POST /tasks/{id}/retry", { params: { id }, said: ({ state }) => `Task ${id} is ${state.replace("_", " ")}.`, then: refresh })}
    >
      Retry task {id}
    </Action>
  );
}

const LOOKS: Record<Step["kind"], Pick<Look, "tone" | "glyph">> = {
  expected: { tone: "good", glyph: "clock" },
  disabled: { tone: "quiet", glyph: "pause" },
  not_expected: { tone: "quiet", glyph: "dash" },
  clock: { tone: "busy", glyph: "half" },
  to_come: { tone: "idle", glyph: "ring" },
  overdue: { tone: "bad", glyph: "triangle" },
  outage: { tone: "bad", glyph: "cross" },
  skipped: { tone: "warn", glyph: "dash" },
  planned: { tone: "good", glyph: "dot" },
  waits: { tone: "warn", glyph: "pause" },
  armed: { tone: "busy", glyph: "clock" },
  fired: { tone: "good", glyph: "play" },
  tried: { tone: "bad", glyph: "cross" },
  runs: { tone: "busy", glyph: "play" },
  ended: { tone: "good", glyph: "dot" },
  gone: { tone: "quiet", glyph: "ring" },
};
const HEADS: Partial<Record<Step["kind"], string>> = { expected: "Expected: ", not_expected: "Not expected: ", disabled: "A time of the schedule, which was disabled: " };

function TheStep({ step, of, schedule, own }: { step: Step; of: number; schedule: string; own: string }) {
  const look = step.kind === "ended" ? lookOf(step.code ?? "") : LOOKS[step.kind];
  const away = step.at ? Date.parse(step.at) - of : 0;
  const said = step.kind === "skipped" && step.code !== "skipped" ? `Skipped, ${step.code?.replace("_", " ")}: ${step.said}` : `${HEADS[step.kind] ?? ""}${step.said}`;
  const links = linksOf(step, of, schedule);
  return (
    <li class="p-step" data-kind={step.kind} data-code={step.code ?? undefined}>
      <div class="p-at">
        {step.at && (
          <>
            <div>
              <time class="instant" dateTime={step.at} title={everyZone(Date.parse(step.at), own)}>
                {shown(Date.parse(step.at), zoneFor(zone.value, own), of, { ms: true })}
              </time>
            </div>
            <div>{away ? `${away < 0 ? "−" : "+"}${milliseconds(Math.abs(away))}` : "at the plan time"}</div>
          </>
        )}
      </div>
      <div class={`p-dot tone-${look.tone}`}>
        <span>
          <Glyph name={look.glyph} />
        </span>
      </div>
      <div class="p-told">
        <div>{withCode(said[0]?.toUpperCase() + said.slice(1))}</div>
        {links.length > 0 && (
          <div class="p-links">
            {links.map(([word, href]) => (
              <a key={href} href={href}>
                {word}
              </a>
            ))}
          </div>
        )}
      </div>
    </li>
  );
}

/** Where what a step speaks of can be seen. */
function linksOf(step: Step, of: number, schedule: string): [string, string][] {
  const links: [string, string][] = [];
  if (step.plan_time && Date.parse(step.plan_time) !== of) links.push([step.code === "coalesced" ? "what ran instead" : step.code === "overlap" ? "why that run ran" : "that plan time", explained(schedule, step.plan_time)]);
  if (step.task && ["planned", "skipped", "waits"].includes(step.kind)) links.push([`task ${step.task}`, link`tasks/${step.task}`]);
  if (step.agent) links.push([step.agent, link`agents/${step.agent}`]);
  if (step.version) links.push([`version ${step.version}`, withQuery(link`schedules/${schedule}`, { tab: "changes" })]);
  if (step.until) links.push(["the outage in the timeline", withQuery("timeline", { name: schedule, at: step.at, range: rangeFor(Date.parse(step.until) - Date.parse(step.at ?? step.until)) })]);
  return links;
}

const rangeFor = (ms: number): string => (ms < 1_200_000 ? "1h" : ms < 7_200_000 ? "6h" : ms < 40_000_000 ? "1d" : "7d");

/** Any date and time, as the schedule's clocks show it. */
function Ask({ schedule, own, time }: { schedule: string; own: string | null; time: string }) {
  const at = Date.parse(time);
  const given = /(Z|[+-]\d\d:?\d\d)$/.test(time) && own && !Number.isNaN(at) ? (({ date, time: clock }) => `${date}T${clock.slice(0, 5)}`)(wall(at, own)) : time.slice(0, 16);
  const [typed, setTyped] = useState<string | null>(null);
  const value = typed ?? given;
  return (
    <Section title="Another time">
      <form
        class="p-ask"
        onSubmit={(event) => {
          event.preventDefault();
          if (value) go(link`schedules/${schedule}/at/${value}`);
        }}
      >
        <Field label={own ? `Date and time, as clocks in ${own} show it` : "Date and time"}>
          {(id) => <input id={id} type="datetime-local" value={value} onInput={(event) => setTyped(event.currentTarget.value)} />}
        </Field>
        <button type="submit" class="button main">
          Why?
        </button>
      </form>
    </Section>
  );
}
