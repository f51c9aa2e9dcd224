// Sends requests to the server that the page came from.

export type State = "UNKNOWN" | "START" | "LOADING" | "AVAILABLE" | "UNLOADING" | "END";

export interface Session {
  needs_sign_in: boolean;
  is_admin: boolean;
  caller: string | null;
  csrf: string;
  rights: string[];
}

export interface Version {
  version: number;
  state: State;
  code: string;
  message: string;
}

export interface Change {
  at_s: number;
  version: number;
  state: State;
  message: string;
}

export interface Model {
  name: string;
  labels: Record<string, number>;
  versions: Version[];
  history: Change[];
  /** Numbers of the model's version folders, served or not. */
  folders: number[];
  /** The version that the model is rolled back to. */
  pinned: number | null;
  /** The folder or URI of the versions; "" for a caller without the right "admin". */
  base_path: string;
}

export interface Overview {
  server: { version: string; is_ready: boolean; is_draining: boolean };
  models: Model[];
  problems: Record<string, string>;
  /** Names of the methods that the server has, such as "neighbors". */
  methods: string[];
}

export interface Table {
  name: string;
  vocabulary_size: number;
  embedding_dim: number;
  dtype: string;
  nbytes: number;
  features: string[];
  /** The rows that lookups read for unknown keys: the first and the last of each run of rows. */
  unknown_key_rows: [number, number][];
}

export interface Row {
  version: number;
  id: number;
  keys: Record<string, string | number | null>;
  label: string | null;
  values: (number | null)[];
  norm: number | null;
  delta: { sequence: number; time_s: number | null } | null;
}

export interface Page {
  version: number;
  start: number;
  total: number;
  keys: (string | number | null)[];
  labels: (string | null)[];
  norms: (number | null)[];
}

export interface TableMap {
  version: number;
  total: number;
  explained: number[];
  ids: number[];
  x: (number | null)[];
  y: (number | null)[];
  norms: (number | null)[];
}

/** The rows of a table that are read most, in the server's sample. */
export interface Hot {
  version: number;
  lookups: number;
  sampled: number;
  rows: { id: number; key: string | number | null; label: string | null; lookups: number; share: number }[];
}

/** An answer of the server that is no success; its text is the server's. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Address of the server as seen by the browser, without a slash at its end. */
export const BASE = location.pathname.replace(/\/console\/?$/, "");

let csrf = "";

/** Sets the token that requests which are no reads carry. */
export function setCsrf(token: string): void {
  csrf = token;
}

// By how much the server's clock is ahead of the browser's, in seconds.
let aheadS = 0;

/** Returns the server's time in seconds since 1970. */
export function nowS(): number {
  return Date.now() / 1000 + aheadS;
}

/** Sends a request; returns the answer whatever its status. */
export async function send(method: string, path: string, body?: string, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && csrf) headers["X-Console-Csrf"] = csrf;
  try {
    const response = await fetch(BASE + path, { method, headers, body: body ?? null, signal: signal ?? null });
    const sentMs = Date.parse(response.headers.get("Date") ?? "");
    // The header Date has whole seconds; a smaller difference is none.
    if (sentMs) aheadS = Math.abs(sentMs - Date.now()) < 2000 ? 0 : (sentMs - Date.now()) / 1000;
    return response;
  } catch (error) {
    if (error instanceof DOMException) throw error;
    throw new Refusal(0, "The server can not be reached.");
  }
}

/** Throws a Refusal with the server's text unless the answer is a success. */
export async function checked(response: Response): Promise<Response> {
  if (response.ok) return response;
  let text = `${response.status} ${response.statusText}`;
  try {
    text = ((await response.json()) as { error: string }).error;
  } catch {
    // An answer without JSON, such as a proxy's, has its status only.
  }
  throw new Refusal(response.status, text);
}

/** Reads a JSON document. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await checked(await send("GET", path, undefined, signal))).json()) as T;
}

/** Posts a JSON document and reads the answer. */
export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await (await checked(await send("POST", path, JSON.stringify(body), signal))).json()) as T;
}

/** Path of a model, or of one of its versions. */
export function modelPath(model: string, version?: string): string {
  const place = version ? `/versions/${version}` : "";
  return `/v1/models/${encodeURIComponent(model)}${place}`;
}

/** Path of a table of a model, with the method behind it, such as ":row?id=1". */
export function tablePath(model: string, version: string, table: string, method: string): string {
  return `${modelPath(model, version)}/tables/${encodeURIComponent(table)}${method}`;
}
