// Submit a task: a form of the handler's own parameters, or JSON where they are not known.

import { useState } from "preact/hooks";
import { toast } from "../core/actions";
import { call, newKey } from "../core/api";
import { go, link } from "../core/router";
import type { Argument, JobView } from "../core/schema";
import { list, read, readObject } from "../core/typed";
import { Choice } from "./controls";
import { FormDialog, Select, Text } from "./form";

const HINTS = { any: "JSON, or text", string: "text", integer: "a whole number", number: "a number", boolean: "" };

export function Submit({ job, close }: { job: JobView; close: () => void }) {
  const run = job.definition.run;
  const known: Argument[] = run.type === "python" ? (run.arguments ?? []) : [];
  const [mode, setMode] = useState<"form" | "json">(known.length ? "form" : "json");
  const [typed, setTyped] = useState<Record<string, string>>({});
  const [json, setJson] = useState("{}");
  const [more, setMore] = useState({ priority: "", delay: "", key: "", tags: "" });
  const [wasTried, setTried] = useState(false);

  const form = read(known, typed);
  const object = readObject(json);
  const isFaulty = mode === "json" ? "fault" in object : Object.keys(form.faults).length > 0;
  const change = (to: "form" | "json") => {
    if (to === "json") setJson(JSON.stringify(form.args, null, 2));
    else if ("args" in object) setTyped(Object.fromEntries(Object.entries(object.args).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)])));
    setMode(to);
  };
  const send = async () => {
    setTried(true);
    if (isFaulty) return false;
    const given = Object.fromEntries(Object.entries({ ...more, tags: list(more.tags) }).filter(([, value]) => value.length));
    const made = await call("POST /tasks", {}, { job: job.name, args: mode === "json" && "args" in object ? object.args : form.args, ...given }, { key: newKey() });
    toast({ kind: "done", text: made.created ? `Task ${made.id} of ${job.name} is ${made.state ?? "submitted"}.` : `Task ${made.id} has this key already.` });
    go(link`tasks/${made.id}`);
    return true;
  };
  const text = (name: keyof typeof more, label: string, hint: string, fault: (field: string) => string | null) => <Text label={label} hint={hint} fault={fault(name)} value={more[name]} set={(value) => setMore({ ...more, [name]: value })} />;
  return (
    <FormDialog title={`Submit ${job.name}`} word="Submit" needs="submitter" run={send} close={close}>
      {(fault) => (
        <>
          {known.length > 0 && <Choice label="Arguments as" of={[["form", "Form"], ["json", "JSON"]]} value={mode} set={change} />}
          {mode === "json" ? (
            <Text label="Arguments" hint={`An object, by name.${run.type === "command" ? " The program finds it in MAINSPRING_ARGS." : ""}`} fault={"fault" in object ? object.fault : fault("args")} rows={6} value={json} set={setJson} />
          ) : (
            known.map(({ name, type = "any", required }) => {
              const given = {
                label: required ? name : `${name} (optional)`,
                hint: [HINTS[type], required ? "" : "empty: its default"].filter(Boolean).join("; "),
                fault: wasTried ? form.faults[name] : null,
                value: typed[name] ?? "",
                set: (value: string) => setTyped({ ...typed, [name]: value }),
              };
              return type === "boolean" ? <Select key={name} {...given} of={[["", "–"], ["true", "true"], ["false", "false"]]} /> : <Text key={name} {...given} />;
            })
          )}
          <details class="more">
            <summary>Priority, time, key, tags</summary>
            <div class="form-pairs">
              <Select label="Priority" hint="higher ones start first" value={more.priority} set={(priority) => setMore({ ...more, priority })} of={[["", "of the job"], ...["critical", "high", "normal", "low"].map((one) => [one, one] as const)]} />
              {text("delay", "Delay", "10m, 1h30m; empty: now", fault)}
              {text("key", "Key", "a second task with it is refused", fault)}
              {text("tags", "Tags", "with spaces between", fault)}
            </div>
          </details>
        </>
      )}
    </FormDialog>
  );
}
