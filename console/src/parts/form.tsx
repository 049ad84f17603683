// A dialog with a form: what is refused is said beside what was typed, which stays.

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { tellRefusal } from "../core/actions";
import { Refusal } from "../core/api";
import type { Rank } from "../core/api";
import { Action, Dialog, Field } from "./controls";
import { Problem } from "./page";
import { Command } from "./show";

interface FormProps {
  title: string;
  /** What the button says. */
  word: string;
  needs?: Rank;
  /** Why it cannot be sent now. */
  refused?: string | null | undefined;
  danger?: boolean;
  wide?: boolean;
  /** Closes the dialog unless it returns false. */
  run: () => Promise<unknown>;
  close: () => void;
  /** Given what is wrong with a field, by its name in the API. */
  children: (fault: (field: string) => string | null) => ComponentChildren;
}

export function FormDialog({ title, word, needs, refused, danger = false, wide = false, run, close, children }: FormProps) {
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  let isBeside = false;
  const fields = children((field) => {
    if (refusal?.problem.field !== field) return null;
    isBeside = true;
    return refusal.message;
  });
  const isBusy = useRef(false);
  const send = async () => {
    if (isBusy.current) return;
    isBusy.current = true;
    setRefusal(null);
    try {
      if ((await run()) !== false) close();
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      setRefusal(error);
    } finally {
      isBusy.current = false;
    }
  };
  return (
    <Dialog title={title} close={close} wide={wide}>
      <form
        onSubmit={(event) => (event.preventDefault(), refused || void send().catch(tellRefusal))}
        onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.currentTarget.requestSubmit()}
      >
        {refusal && !isBeside && <Problem refusal={refusal} />}
        {fields}
        <footer class="dialog-foot">
          <button type="button" class="button plain" onClick={close}>
            Back
          </button>
          <Action kind={danger ? "danger" : "main"} {...(needs ? { needs } : {})} refused={refused} run={send}>
            {word}
          </Action>
        </footer>
      </form>
    </Dialog>
  );
}

interface TextProps {
  label: string;
  value: string;
  set: (value: string) => void;
  hint?: string;
  fault?: string | null | undefined;
  first?: boolean;
  placeholder?: string;
  /** Lines of a larger field. */
  rows?: number;
  inputMode?: "url";
  readOnly?: boolean;
}

export function Text({ label, value, set, hint, fault, first, rows, ...rest }: TextProps) {
  return (
    <Field label={label} hint={hint} fault={fault}>
      {(id, described) => {
        const given = { id, "aria-describedby": described, autoFocus: first, autoComplete: "off", spellcheck: false, "aria-invalid": Boolean(fault), value, ...rest };
        return rows ? <textarea class="mono" rows={rows} {...given} onInput={(event) => set(event.currentTarget.value)} /> : <input {...given} onInput={(event) => set(event.currentTarget.value)} />;
      }}
    </Field>
  );
}

export function Select({ label, value, set, of, hint, fault }: { label: string; value: string; set: (value: string) => void; of: readonly (readonly [string, string])[]; hint?: string; fault?: string | null | undefined }) {
  return (
    <Field label={label} hint={hint} fault={fault}>
      {(id, described) => (
        <select id={id} aria-describedby={described} value={value} onChange={(event) => set(event.currentTarget.value)}>
          {of.map(([one, word]) => (
            <option key={one} value={one}>
              {word}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

export function Check({ is, set, children }: { is: boolean; set: (is: boolean) => void; children: ComponentChildren }) {
  return (
    <label class="check">
      <input type="checkbox" checked={is} onChange={(event) => set(event.currentTarget.checked)} /> {children}
    </label>
  );
}

/** Shown once: it is in no answer after this one. */
export function Secret({ title, text, note, close }: { title: string; text: string; note: string; close: () => void }) {
  return (
    <Dialog title={title} close={close}>
      <div class="form">
        <p class="line warn">{note}</p>
        <Command>{text}</Command>
        <footer class="dialog-foot">
          <button type="button" class="button main" onClick={close}>
            I have copied it
          </button>
        </footer>
      </div>
    </Dialog>
  );
}
