// The address of the story of a plan time.

import { link } from "./router";

export const explained = (schedule: string, at: number | string): string => link`schedules/${schedule}/at/${new Date(at).toISOString().replace(".000Z", "Z")}`;
