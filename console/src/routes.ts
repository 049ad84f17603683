// Which page is at which address. Those that people open first are there from the start; the rest is one file more.

import type { ComponentType } from "preact";
import type { Names } from "./core/router";
import Tasks from "./pages/tasks";
import Schedules from "./pages/schedules";
import Task from "./pages/task";
import Overview from "./pages/overview";

export type PageOf = ComponentType<{ names: Names }>;
export type Page = PageOf | Exclude<keyof typeof import("./pages/rest"), "default">;

export const ROUTES: readonly (readonly [string, Page])[] = [
  ["", Overview],
  ["schedules", Schedules],
  ["schedules/:name", "schedule"],
  ["schedules/:name/edit", "edit"],
  ["schedules/:name/at/:time", "explain"],
  ["new/schedule", "edit"],
  ["timeline", "timeline"],
  ["calendar", "calendar"],
  ["tasks", Tasks],
  ["tasks/:id", Task],
  ["jobs", "jobs"],
  ["jobs/:name", "job"],
  ["batches", "batches"],
  ["batches/:id", "batch"],
  ["agents", "fleet"],
  ["agents/:name", "agent"],
  ["daemons", "daemons"],
  ["cluster", "cluster"],
  ["alerts", "alerts"],
  ["activity", "activity"],
  ["access", "access"],
  ["settings", "settings"],
  ["api-reference", "api"],
];

/** A page, loaded if it was not yet. */
export const load = async (page: Page): Promise<PageOf> => (typeof page === "string" ? (await import("./pages/rest"))[page] : page);
