// What can be done to one task: what is not possible now is greyed and says why.

import { useEffect, useRef, useState } from "preact/hooks";
import { act, refuse, send, toast } from "../core/actions";
import type { Name, Rank } from "../core/api";
import { cli, curl } from "../core/commands";
import { useKeys } from "../core/keys";
import { go, link } from "../core/router";
import type { JobView, TaskDetail } from "../core/schema";
import { isEnded, lookOf } from "../core/states";
import { readObject } from "../core/typed";
import { LEVELS } from "./act_on_many";
import type { Level } from "./act_on_many";
import { AsCommand } from "./as_command";
import { Action, Choice,  } from "./controls";
import { FormDialog, Text } from "./form";
import { Icon } from "./icons";

interface Deed {
  id: string;
  word: string;
  needs: Rank;
  /** Why not now. */
  refused: string | null;
  run: () => unknown;
  danger?: boolean;
}

/** Cancel, kill, pause … with the reason where it is not possible in this state. */
function deeds(task: TaskDetail, job: JobView | null, changed: () => void, open: (dialog: "priority" | "again") => void): Deed[] {
  const { id, state } = task;
  const ended = isEnded(state);
  const waits = state === "blocked" || state === "pending";
  const isCommand = !job || job.definition.run.type === "command";
  const stateWords = lookOf(state).word;
  const ofMany = task.children.length > 0;
  const hasEnded = `the task has ended (${stateWords})`;
  const notStarted = ended ? hasEnded : "the task does not run yet";
  const onlyWaiting = waits ? null : ended ? hasEnded : `the task is ${stateWords}: an agent has it`;
  const post = (name: Name & `POST /tasks/{id}/${string}`, said: (answer: { state: string }) => string, body: unknown = {}) =>
    act(name, { params: { id }, body, said: (answer) => said(answer as { state: string }), then: changed });
  const asked = (answer: { state: string }, word: string) => (isEnded(answer.state) ? `Task ${id} is ${lookOf(answer.state).word}.` : `Task ${id} is asked to ${word}.`);
  return [
    { id: "retry", word: "Retry", needs: "operator", refused: !ended ? `the task is ${stateWords}; only one that ended without success can be retried` : state === "succeeded" ? "the task succeeded; run it again as a new one instead" : null, run: () => post("POST /tasks/{id}/retry", () => `Task ${id} runs again.`) },
    { id: "again", word: "Run again with …", needs: "submitter", refused: null, run: () => open("again") },
    { id: "now", word: "Run now", needs: "operator", refused: onlyWaiting, run: () => act("PATCH /tasks/{id}", { params: { id }, body: { now: true }, said: () => `Task ${id} is due now.`, then: changed }) },
    { id: "priority", word: "Priority …", needs: "operator", refused: onlyWaiting, run: () => open("priority") },
    { id: "skip", word: "Skip", needs: "submitter", refused: waits || state === "assigned" ? null : ended ? hasEnded : "the task runs; only what has not started can be skipped", run: () => post("POST /tasks/{id}/skip", (answer) => (answer.state === "skipped" ? `Task ${id} is skipped.` : `Task ${id} is asked back from its agent, and skipped unless it starts first.`)) },
    { id: "pause", word: "Pause", needs: "operator", refused: state !== "running" ? notStarted : task.paused_at ? "the task is paused" : !isCommand ? "only commands can be paused; this job runs Python or HTTP" : ofMany ? "it is a broadcast; pause its runs" : null, run: () => post("POST /tasks/{id}/pause", () => `Task ${id} is paused.`) },
    { id: "resume", word: "Resume", needs: "operator", refused: task.paused_at ? null : ended ? hasEnded : "the task is not paused", run: () => post("POST /tasks/{id}/resume", () => `Task ${id} goes on.`) },
    { id: "restart", word: "Restart", needs: "operator", refused: state !== "running" ? notStarted : job?.definition.delivery === "at_most_once" ? "its job is at_most_once, which never runs twice" : null, run: () => post("POST /tasks/{id}/restart", () => `Task ${id} is stopped and runs again, which costs no attempt.`) },
    { id: "cancel", word: "Cancel", needs: "submitter", danger: true, refused: ended ? hasEnded : null, run: () => post("POST /tasks/{id}/cancel", (answer) => asked(answer, "stop")) },
    { id: "kill", word: "Kill", needs: "submitter", danger: true, refused: ended ? hasEnded : null, run: () => post("POST /tasks/{id}/cancel", (answer) => asked(answer, "end without grace"), { kill: true }) },
  ];
}

/** Which come first in this state; the others are behind "More". */
function firstOnes(task: TaskDetail, all: Deed[]): string[] {
  if (isEnded(task.state)) return task.state === "succeeded" ? ["again", "retry"] : ["retry", "again"];
  if (task.state === "running") {
    const canPause = all.some((deed) => deed.id === "pause" && !deed.refused);
    return [...(task.paused_at ? ["resume"] : canPause ? ["pause"] : []), "restart", "cancel"];
  }
  return ["now", "priority", "skip", "cancel"];
}

export function TaskButtons({ task, job, changed }: { task: TaskDetail; job: JobView | null; changed: () => void }) {
  const [dialog, setDialog] = useState<"priority" | "again" | null>(null);
  const all = deeds(task, job, changed, setDialog);
  const first = firstOnes(task, all);
  const main = first.map((id) => all.find((deed) => deed.id === id)).filter((deed) => deed !== undefined);
  const rest = all.filter((deed) => !first.includes(deed.id));
  const press = (id: string) => {
    const deed = all.find((one) => one.id === id);
    if (deed?.refused) refuse(deed.refused);
    else void deed?.run();
  };
  useKeys([
    { keys: "r", does: "retry the task", run: () => press("retry") },
    { keys: "c", does: "cancel the task", run: () => press("cancel") },
    { keys: "e", does: "run the task again with other arguments", run: () => press("again") },
  ]);
  return (
    <>
      {main.map((deed) => (
        <Action key={deed.id} kind={deed.danger ? "danger" : (deed.id === "retry" || deed.id === "resume") && !deed.refused ? "main" : "plain"} needs={deed.needs} refused={deed.refused} run={deed.run}>
          {deed.word}
        </Action>
      ))}
      <More deeds={rest} task={task} />
      {dialog === "priority" && <Priority task={task} changed={changed} close={() => setDialog(null)} />}
      {dialog === "again" && <Again task={task} close={() => setDialog(null)} />}
    </>
  );
}

/** The rest as a menu; each with its reason where it is greyed. */
function More({ deeds, task }: { deeds: Deed[]; task: TaskDetail }) {
  const menu = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const leave = (event: Event) => {
      const isOutside = event instanceof KeyboardEvent ? event.key === "Escape" : !menu.current?.contains(event.target as Node);
      if (!menu.current?.open || !isOutside) return;
      menu.current.open = false;
      if (event instanceof KeyboardEvent) menu.current.querySelector("summary")?.focus();
    };
    document.addEventListener("click", leave);
    document.addEventListener("keydown", leave);
    return () => {
      document.removeEventListener("click", leave);
      document.removeEventListener("keydown", leave);
    };
  }, []);
  return (
    <details class="more-menu" ref={menu}>
      <summary class="button">
        More <Icon name="down" />
      </summary>
      <div class="more-list">
        {deeds.map((deed) => (
          <div key={deed.id}>
            <Action
              kind={deed.danger ? "danger" : "plain"}
              needs={deed.needs}
              refused={deed.refused}
              run={() => {
                if (menu.current) menu.current.open = false;
                return deed.run();
              }}
            >
              {deed.word}
            </Action>
            {deed.refused && <p class="hint">{deed.refused}</p>}
          </div>
        ))}
        <AsCommand
          word="Copy as a command"
          of={() => [
            ["show it", cli("task", "show", task.id)],
            ["its output", cli("task", "logs", task.id)],
            isEnded(task.state) ? ["retry it", cli("task", "retry", task.id)] : ["cancel it", cli("task", "cancel", task.id)],
            ["submit the same", cli("task", "submit", task.job, ...(task.args && Object.keys(task.args).length ? ["--args", JSON.stringify(task.args)] : []))],
            ["curl", curl("GET /tasks/{id}", { id: task.id })],
          ]}
        />
      </div>
    </details>
  );
}

function Priority({ task, changed, close }: { task: TaskDetail; changed: () => void; close: () => void }) {
  const [level, setLevel] = useState<Level>("high");
  const run = async () => (await act("PATCH /tasks/{id}", { params: { id: task.id }, body: { priority: level }, said: () => `Task ${task.id} has the priority ${level}.`, then: changed })) !== null;
  return (
    <FormDialog title={`Priority of task ${task.id}`} word="Change" run={run} close={close}>
      {() => (
        <>
          <p>
            It has {task.priority}
            {task.counts_as !== null && task.counts_as !== task.priority ? `, and counts as ${task.counts_as} because it has waited` : ""}; 9 is served first.
          </p>
          <Choice label="Priority" of={LEVELS} value={level} set={setLevel} />
        </>
      )}
    </FormDialog>
  );
}

/** A value that the API has masked, or a part of one: a password of its own in an address. */
const MASKED = /"\*\*\*"|[:=/]\*\*\*/;

/** The same job with other arguments, as a new task. What was typed stays, whatever is refreshed behind it. */
function Again({ task, close }: { task: TaskDetail; close: () => void }) {
  const [text, setText] = useState(() => JSON.stringify(task.args ?? {}, null, 2));
  const given = readObject(text);
  const wrong = "fault" in given ? given.fault : MASKED.test(text) ? "*** hides a secret; give the value itself" : null;
  const run = async () => {
    const same = { priority: task.priority, tags: task.tags, concurrency_key: task.concurrency_key, timeout: task.timeout, retries: task.retries, stalls_after: task.stalls_after };
    const kept = Object.fromEntries(Object.entries(same).filter(([, value]) => value !== null && !(Array.isArray(value) && !value.length)));
    const made = await send("POST /tasks", {}, { job: task.job, ...given, ...kept });
    toast({ kind: "done", text: `Submitted task ${made.id}.` });
    go(link`tasks/${made.id}`);
  };
  return (
    <FormDialog title={`Run ${task.job} again`} word="Submit" needs="submitter" refused={wrong && ("fault" in given ? "the arguments are no JSON object" : "an argument is masked")} run={run} close={close} wide>
      {(fault) => (
        <Text
          label="Arguments, as JSON"
          fault={wrong ?? fault("args")}
          hint={`A new task with the priority${task.tags.length ? ", the tags" : ""} and the limits of task ${task.id}.`}
          rows={Math.min(20, Math.max(6, text.split("\n").length + 1))}
          value={text}
          set={setText}
        />
      )}
    </FormDialog>
  );
}
