// Settings of the cluster, with who set them; the priority rules; and what this browser prefers.

import { useState } from "preact/hooks";
import { act, toast } from "../core/actions";
import { call, Refusal } from "../core/api";
import { letters, theme, THEMES, zone } from "../core/prefs";
import { useGet } from "../core/query";
import type { Loaded } from "../core/query";
import type { RuleTest, RuleView, SettingsView, SettingView } from "../core/schema";
import { list, readObject } from "../core/typed";
import { priorityOf } from "../core/policies";
import { count, span } from "../core/time";
import { Action, Choice, Tabs } from "../parts/controls";
import { FormDialog, Text } from "../parts/form";
import { Empty, Fact, Facts, Page, Problem, Section, Show } from "../parts/page";
import { Instant, State } from "../parts/show";
import { Table } from "../parts/table";

export default function Settings() {
  const settings = useGet("GET /settings", {}, { every: 30 });
  return (
    <Page title="Settings" remark="What every server follows within seconds.">
      <Tabs
        of={[
          { id: "cluster", word: "Cluster", content: () => <Cluster of={settings} /> },
          { id: "rules", word: "Priority rules", content: () => <Rules /> },
          { id: "browser", word: "This browser", content: () => <Browser /> },
        ]}
      />
    </Page>
  );
}

/** Durations are seconds, which these settings have. */
const DURATIONS = ["aging", "default_timeout", "default_expires"];
const shown = (name: string, value: unknown): string => (value === null || value === undefined ? "not set" : typeof value === "number" ? (DURATIONS.includes(name) ? span(value) : count(value)) : String(value));

const put = (name: string, value: unknown, said: string, then: () => void, undo?: () => Promise<unknown>) => act("PATCH /settings", { body: { [name]: value }, said: () => said, then, ...(undo && { undo }) });

function Cluster({ of }: { of: Loaded<SettingsView> }) {
  const [edits, setEdits] = useState<SettingView | null>(null);
  const reset = ({ name, value, default: usual }: SettingView) => put(name, null, `${name} is back at its default, ${shown(name, usual)}.`, of.refresh, () => put(name, value, `${name} is ${shown(name, value)} again.`, of.refresh));
  return (
    <Show of={of}>
      {({ details }) => (
        <>
          <ul class="settings">
            {details.map((setting) => (
              <li key={setting.name} class="card">
                <div>
                  <h2>
                    <code>{setting.name}</code>
                  </h2>
                  <p>{setting.meaning.replace("null:", "not set:")}</p>
                  <p class="quiet">
                    default {shown(setting.name, setting.default)}
                    {setting.updated_at ? (
                      <>
                        {" · "}
                        {setting.is_set ? "set" : "reset"} <Instant at={setting.updated_at} date="always" />
                        {setting.updated_by && <> by {setting.updated_by}</>}
                      </>
                    ) : (
                      " · never changed"
                    )}
                  </p>
                </div>
                <p class={setting.is_set ? "setting-value set" : "setting-value"}>
                  {shown(setting.name, setting.value)}
                  {!setting.is_set && <span class="quiet"> default</span>}
                </p>
                <div class="actions">
                  <Action needs="admin" label={`Change ${setting.name}`} run={() => setEdits(setting)}>Change …</Action>
                  <Action needs="admin" label={`Reset ${setting.name}`} refused={setting.is_set ? null : "it has its default"} run={() => reset(setting)}>Reset</Action>
                </div>
              </li>
            ))}
          </ul>
          {edits && of.data && <Edit of={edits} version={of.data.version} close={() => setEdits(null)} done={of.refresh} />}
        </>
      )}
    </Show>
  );
}

/** Numbers, true, false and null as such; all else is text, such as 30s. */
function valueOf(text: string): unknown {
  return /^-?\d+(\.\d+)?$|^(true|false|null)$/.test(text) ? (JSON.parse(text) as unknown) : text;
}

function Edit({ of, version: read, close, done }: { of: SettingView; version: number; close: () => void; done: () => void }) {
  const [text, setText] = useState(of.value === null || of.value === undefined ? "" : String(of.value));
  const [version, setVersion] = useState(read);
  const [theirs, setTheirs] = useState<SettingView | null>(null);
  const save = async () => {
    try {
      await call("PATCH /settings", {}, { [of.name]: valueOf(text.trim()) }, { ifMatch: version });
    } catch (error) {
      if (!(error instanceof Refusal) || error.status !== 412) throw error;
      const found = await call("GET /settings");
      setVersion(found.version);
      setTheirs(found.details.find(({ name }) => name === of.name) ?? null);
      return false;
    }
    toast({ kind: "done", text: `${of.name} is ${text.trim()}; servers follow within seconds.`, undo: () => put(of.name, of.is_set ? of.value : null, `${of.name} is ${shown(of.name, of.value)} again.`, done) });
    done();
    return true;
  };
  return (
    <FormDialog title={`Change ${of.name}`} word={theirs ? "Save mine in its place" : "Save"} needs="admin" refused={text.trim() ? null : "give a value, or use Reset"} run={save} close={close}>
      {(fault) => (
        <>
          {theirs && (
            <div class="line warn" role="alert">
              <p>Somebody changed settings since you opened this.</p>
              <Facts>
                <Fact name="Now">
                  {shown(of.name, theirs.value)} <span class="quiet">{theirs.updated_by}</span>
                </Fact>
                <Fact name="Yours">{text}</Fact>
              </Facts>
            </div>
          )}
          <Text label="Value" hint={of.meaning} fault={fault(of.name)} first value={text} set={setText} />
        </>
      )}
    </FormDialog>
  );
}

// ── priority rules ────────────────────────────────────────────────────────────────────────────────────

const gives = ({ priority, shift, force }: RuleView): string => `${priority !== null ? priorityOf(priority) : shift !== null ? `${shift > 0 ? "+" : ""}${shift}` : "nothing"}${force ? ", whatever was asked for" : ""}`;

function Rules() {
  const rules = useGet("GET /priority-rules");
  return (
    <>
      <p class="quiet">The first rule that fits decides the priority of a task as it is submitted.</p>
      <Show of={rules}>
        {({ items }) => (
          <Table<RuleView>
            label="Priority rules"
            rows={items}
            id={(rule) => rule.name}
            columns={[
              { name: "Order", align: "right", cell: (rule) => rule.order },
              { name: "Rule", cell: (rule) => rule.name },
              { name: "Jobs", cell: (rule) => <code>{rule.jobs}</code>, drop: 3 },
              { name: "When", cell: (rule) => <code>{rule.when.map(({ field, is, value }) => `${field} ${is} ${JSON.stringify(value)}`).join(" and ") || "always"}</code>, drop: 2 },
              { name: "Gives", cell: (rule) => gives(rule) },
              { name: "State", cell: (rule) => <State of={rule.enabled ? "enabled" : "disabled"} />, drop: 3 },
            ]}
            empty={<Empty title="Rules set priorities by job, arguments, tags or submitter; there is none." command="mainspring rule set urgent --when 'tag in hotfix,urgent' --priority critical" />}
          />
        )}
      </Show>
      <Section title="Which rule would decide?">
        <TestRule />
      </Section>
    </>
  );
}

function TestRule() {
  const [given, setGiven] = useState({ job: "", args: "{}", tags: "" });
  const [found, setFound] = useState<RuleTest | null>(null);
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const object = readObject(given.args);
  const ask = async () => {
    if ("fault" in object) return;
    try {
      setRefusal(null);
      setFound(await call("POST /priority-rules/test", {}, { job: given.job.trim(), args: object.args, tags: list(given.tags) }));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      setFound(null);
      setRefusal(error);
    }
  };
  const field = (name: keyof typeof given, label: string, fault: string | null = null) => <Text label={label} fault={fault} value={given[name]} set={(value) => setGiven({ ...given, [name]: value })} />;
  return (
    <form class="form" onSubmit={(event) => (event.preventDefault(), void ask())}>
      <div class="form-pairs three">
        {field("job", "Job")}
        {field("args", "Arguments", "fault" in object ? object.fault : null)}
        {field("tags", "Tags")}
      </div>
      <div>
        <Action refused={given.job.trim() ? null : "name a job"} run={ask}>Test</Action>
      </div>
      {refusal && <Problem refusal={refusal} />}
      {found && (
        <div class="card" role="status">
          <p>
            <strong>Priority {priorityOf(found.priority)}</strong>: {found.reason}
          </p>
          <ul>
            {found.rules.map(({ rule, decides, reason }) => (
              <li key={rule}>
                <State of={decides ? "decides" : "passed"} /> {rule}: <span class="quiet">{reason}</span>
              </li>
            ))}
          </ul>
        </div>
      )}
    </form>
  );
}

function Browser() {
  return (
    <dl class="facts preferences">
      <dt>Theme</dt>
      <dd>
        <Choice label="Theme" of={THEMES.map((one) => [one, one] as const)} value={theme.value} set={(value) => (theme.value = value)} />
      </dd>
      <dt>Times in</dt>
      <dd>
        <Choice label="Times in" of={[["schedule", "the schedule's zone"], ["local", "mine"], ["utc", "UTC"]] as const} value={zone.value} set={(value) => (zone.value = value)} />
      </dd>
      <dt>Keys</dt>
      <dd>
        <Choice label="Single letters as keys" of={[["on", "single letters work"], ["off", "off"]] as const} value={letters.value} set={(value) => (letters.value = value)} />
      </dd>
    </dl>
  );
}
