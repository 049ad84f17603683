// The rules of alerts: what each looks for, in words; what it would find now; and a form to make and change them.

import { useState } from "preact/hooks";
import { act } from "../core/actions";
import { call,  } from "../core/api";
import { useGet } from "../core/query";
import { query, setQuery } from "../core/router";
import type { AlertKind, AlertRuleSpec, AlertRuleTest, AlertRuleView } from "../core/schema";
import { count, span } from "../core/time";
import { list } from "../core/typed";
import { Action, Confirm, Dialog,  } from "../parts/controls";
import { FormDialog, Select, Text } from "../parts/form";
import { Empty, Show } from "../parts/page";
import { Instant, many } from "../parts/show";
import { Table } from "../parts/table";
import { Severity } from "./alerts";

const seconds = (value: number | string): string => (typeof value === "number" ? span(value) : value);

/** "after 1 min, count 3", with the defaults of its kind. */
function thresholds(kind: AlertKind | undefined, given: Record<string, unknown>): string {
  return (kind?.parameters ?? [])
    .map(({ name, default: usual, is_duration }) => [name, given[name] ?? usual, is_duration] as const)
    .filter(([, value]) => value !== null && !(typeof value === "object" && !Object.keys(value as object).length))
    .map(([name, value, isDuration]) => `${name.replaceAll("_", " ")} ${isDuration ? seconds(value as number) : typeof value === "number" ? count(value) : typeof value === "object" ? JSON.stringify(value) : String(value)}`)
    .join(", ");
}

export function Rules() {
  const rules = useGet("GET /alert-rules", { limit: 200 }, { every: 15 });
  const kinds = useGet("GET /alert-kinds");
  const [editing, setEditing] = useState<AlertRuleView | "new" | null>(null);
  const [deleting, setDeleting] = useState<AlertRuleView | null>(null);
  const [found, setFound] = useState<AlertRuleTest | null>(null);
  const of = new Map(kinds.data?.items.map((kind) => [kind.kind, kind]));
  const test = async (rule: AlertRuleView) => setFound(await call("POST /alert-rules/{name}/test", { name: rule.name }, {}));
  const wanted = query.value.get("rule");
  const toggle = (rule: AlertRuleView) => {
    const set = (enabled: boolean) => call("PATCH /alert-rules/{name}", { name: rule.name }, { enabled }).then((changed) => (rules.refresh(), changed));
    return act("PATCH /alert-rules/{name}", {
      params: { name: rule.name },
      body: { enabled: !rule.spec.enabled },
      said: () => `Rule ${rule.name} is ${rule.spec.enabled ? "off: it finds nothing any more" : "on"}.`,
      undo: () => set(rule.spec.enabled),
      then: rules.refresh,
    });
  };
  return (
    <>
      <div class="table-note">
        <Action needs="admin" run={() => setEditing("new")}>New rule …</Action>
        {wanted && <button type="button" class="link" onClick={() => setQuery({ rule: null })}>Show all rules</button>}
      </div>
      <Show of={rules}>
        {({ items }) => (
          <Table
            label="Alert rules"
            rows={wanted ? items.filter((rule) => rule.name === wanted) : items}
            id={(rule) => rule.name}
            columns={[
              { name: "Rule", cell: (rule) => <span class={rule.spec.enabled ? "" : "quiet"}>{rule.name}{!rule.spec.enabled && " (off)"}<span class="rule-help quiet">{of.get(rule.spec.kind)?.help}</span></span> },
              {
                name: "Looks for",
                cell: (rule) => (
                  <div class="rule-words" title={of.get(rule.spec.kind)?.help}>
                    <span>{of.get(rule.spec.kind)?.help ?? rule.spec.kind}</span>
                    <span class="quiet">{[rule.spec.names.join(", "), thresholds(of.get(rule.spec.kind), rule.spec.parameters), rule.spec.for ? `for ${seconds(rule.spec.for)}` : ""].filter(Boolean).join(" · ")}</span>
                  </div>
                ),
                drop: 3,
              },
              { name: "Severity", cell: (rule) => <Severity of={rule.spec.severity} />, drop: 2 },
              { name: "Tells", cell: (rule) => rule.spec.channels.join(", ") || "all channels", drop: 1 },
              { name: "Evaluated", cell: (rule) => (rule.problem ? <span class="tone-bad" title={rule.problem}>{rule.problem}</span> : <Instant at={rule.evaluated_at} relative />), drop: 2 },
              {
                name: "Actions",
                cell: (rule) => (
                  <span class="row-actions">
                    <Action kind="link" run={() => test(rule)} label={`Test ${rule.name}`}>Test</Action>
                    <Action kind="link" needs="admin" run={() => setEditing(rule)} label={`Edit ${rule.name}`}>Edit</Action>
                    <Action kind="link" needs="admin" run={() => toggle(rule)} label={`Turn ${rule.spec.enabled ? "off" : "on"} ${rule.name}`}>{rule.spec.enabled ? "Turn off" : "Turn on"}</Action>
                    <Action kind="link" needs="admin" run={() => setDeleting(rule)} label={`Delete ${rule.name}`}>Delete</Action>
                  </span>
                ),
                align: "right",
              },
            ]}
            empty={<Empty title="There are no rules: nothing is looked for." command="mainspring alert rule set slow --kind late --param after=30s" />}
          />
        )}
      </Show>
      {found && <Found found={found} close={() => setFound(null)} />}
      {editing && kinds.data && <RuleForm rule={editing === "new" ? null : editing} kinds={kinds.data.items} close={() => setEditing(null)} done={rules.refresh} />}
      {deleting && (
        <Confirm
          title={`Delete the rule ${deleting.name}`}
          type={deleting.name}
          word="Delete it"
          close={() => setDeleting(null)}
          run={() => act("DELETE /alert-rules/{name}", { params: { name: deleting.name }, how: { ifMatch: deleting.version }, said: () => `Rule ${deleting.name} is gone; what it found is closed.`, then: rules.refresh })}
        >
          <p>What it found is closed without a word.</p>
        </Confirm>
      )}
    </>
  );
}

function Found({ found, close }: { found: AlertRuleTest; close: () => void }) {
  return (
    <Dialog title={`What ${found.rule} finds now`} close={close} wide>
      <p class="quiet">
        {found.since ? <>Of what happened since <Instant at={found.since} />. </> : ""}Nothing is noted or told by a test.
      </p>
      {found.findings.length === 0 ? (
        <p class="test-none">It finds nothing.</p>
      ) : (
        <ul class="findings">
          {found.findings.slice(0, 50).map((one) => (
            <li key={one.subject}>
              <strong>{one.subject}</strong> {one.message} <span class="quiet">since <Instant at={one.since} />{one.count > 1 && `, ${many(one.count, "time")}`}</span>
            </li>
          ))}
        </ul>
      )}
      {found.findings.length > 50 && <p class="quiet">and {count(found.findings.length - 50)} more</p>}
    </Dialog>
  );
}

interface Typed {
  name: string;
  kind: string;
  names: string;
  hold: string;
  repeat: string;
  severity: AlertRuleSpec["severity"];
  channels: string;
  parameters: Record<string, string>;
}

function typedOf(rule: AlertRuleView | null): Typed {
  const spec = rule?.spec;
  return {
    name: rule?.name ?? "",
    kind: spec?.kind ?? "failing",
    names: spec?.names.join(" ") ?? "",
    hold: spec?.for ? `${spec.for}` : "",
    repeat: spec?.repeat ? `${spec.repeat}` : "",
    severity: spec?.severity ?? "warning",
    channels: spec?.channels.join(" ") ?? "",
    parameters: Object.fromEntries(Object.entries(spec?.parameters ?? {}).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)])),
  };
}

const duration = (text: string): number | string => (/^\d+(\.\d+)?$/.test(text.trim()) ? Number(text) : text.trim());

function parameter(text: string, isDuration: boolean): unknown {
  if (isDuration) return duration(text);
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

function RuleForm({ rule, kinds, close, done }: { rule: AlertRuleView | null; kinds: AlertKind[]; close: () => void; done: () => void }) {
  const [typed, setTyped] = useState(() => typedOf(rule));
  const kind = kinds.find((one) => one.kind === typed.kind);
  const set = (change: Partial<Typed>) => setTyped((old) => ({ ...old, ...change }));
  const save = async () => {
    const own = Object.entries(typed.parameters).filter(([name, text]) => text.trim() && kind?.parameters.some((one) => one.name === name));
    const spec = {
      kind: typed.kind,
      names: kind?.about ? list(typed.names) : [],
      parameters: Object.fromEntries(own.map(([name, text]) => [name, parameter(text, kind?.parameters.find((one) => one.name === name)?.is_duration ?? false)])),
      ...(typed.hold.trim() && !kind?.is_event ? { for: duration(typed.hold) } : {}),
      ...(typed.repeat.trim() ? { repeat: duration(typed.repeat) } : {}),
      severity: typed.severity,
      channels: list(typed.channels),
      ...(rule ? { enabled: rule.spec.enabled, calendar: rule.spec.calendar, tz: rule.spec.tz } : {}),
    };
    await call("PUT /alert-rules/{name}", { name: typed.name }, spec, rule ? { ifMatch: rule.version } : { ifNew: true });
    done();
  };
  return (
    <FormDialog title={rule ? `Rule ${rule.name}` : "New rule"} word="Save" needs="admin" refused={typed.name ? null : "give it a name"} run={save} close={close} wide>
      {(fault) => {
        const text = (name: "name" | "names" | "hold" | "repeat" | "channels", label: string, hint: string, wire: string = name) => (
          <Text label={label} hint={hint} fault={fault(wire)} readOnly={name === "name" && rule !== null} value={typed[name]} set={(value) => set({ [name]: value })} />
        );
        return (
          <div class="columns">
            {text("name", "Name", rule ? "The name of a rule stays." : "Letters, digits, - and .")}
            <Select label="Looks for" hint={kind?.help ?? ""} fault={fault("kind")} value={typed.kind} set={(kind) => set({ kind, parameters: {} })} of={kinds.map((one) => [one.kind, one.kind.replaceAll("_", " ")])} />
            {kind?.about && text("names", `Only these ${kind.about}`, "Names with *, separated by spaces; empty: all.")}
            {kind?.parameters.map(({ name, is_duration, default: usual }) => (
              <Text
                key={name}
                label={name.replaceAll("_", " ")}
                hint={`${is_duration ? "Such as 30s or 10m; " : ""}without it ${is_duration ? span(Number(usual)) : JSON.stringify(usual)}.`}
                fault={fault(`parameters.${name}`)}
                value={typed.parameters[name] ?? ""}
                set={(value) => set({ parameters: { ...typed.parameters, [name]: value } })}
              />
            ))}
            {!kind?.is_event && text("hold", "Fires after it lasts", "Such as 2m; empty: at once.", "for")}
            {text("repeat", "Told again after", "While it fires, such as 4h; empty: once.")}
            <Select label="Severity" value={typed.severity} set={(severity) => set({ severity: severity as Typed["severity"] })} of={["info", "warning", "critical"].map((word) => [word, word])} />
            {text("channels", "Channels", "Names, separated by spaces; empty: all.")}
          </div>
        );
      }}
    </FormDialog>
  );
}
