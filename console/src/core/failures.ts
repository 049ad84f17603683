// Equal errors together: by their code and first line, with numbers and hashes left out of the comparison.

export interface Failed {
  id: number;
  error_code: string | null;
  error?: string | null;
  finished_at: string | null;
}

export interface Group<T extends Failed> {
  key: string;
  /** The first line of the newest. */
  text: string;
  code: string | null;
  /** Their first lines differ, in what is left out of the comparison. */
  isMixed: boolean;
  tasks: T[]; // the newest first
}

const firstLine = (text: string | null | undefined): string => (text ?? "").trim().split("\n", 1)[0] ?? "";

/** What differs between two runs of the same fault: numbers, ids, quoted values. */
const general = (text: string): string => text.replace(/\b[0-9a-f]{8,}\b|\d+(\.\d+)?/gi, "#");

export function grouped<T extends Failed>(tasks: readonly T[]): Group<T>[] {
  const found = new Map<string, Group<T>>();
  for (const task of [...tasks].sort((a, b) => b.id - a.id)) {
    const text = firstLine(task.error);
    const key = `${task.error_code ?? ""} ${general(text)}`;
    const group = found.get(key);
    if (group) {
      group.tasks.push(task);
      group.isMixed ||= text !== firstLine(group.tasks[0]?.error);
    } else found.set(key, { key, text: text || task.error_code || "no reason is known", code: task.error_code, isMixed: false, tasks: [task] });
  }
  return [...found.values()].sort((a, b) => b.tasks.length - a.tasks.length);
}
