// The part of /v1/statusz that pages show.

export interface TableStatus {
  table: string;
  rows: number;
  dim: number;
  dtype: string;
  mapped_bytes: number;
  /** Bytes of its pages that are in memory; null if the server does not map the table. */
  resident_bytes: number | null;
  /** Ids in lookups, and those of them that have no row. */
  ids?: number;
  missing_ids?: number;
  /** Keys in lookups that are in no vocabulary. */
  oov_keys?: number;
  /** Rows that lookups and predictions read, estimated; null if the server does not sample them. */
  reads: number | null;
}

/** The deltas of one version; times are texts in UTC. */
export interface DeltaStatus {
  last_sequence: number;
  applied: number;
  rows: number;
  pending: number;
  lag_s: number;
  missing: number;
  refused: Record<string, number>;
  journal_failures: Record<string, number>;
  journal: { bytes: number; max_bytes: number } | null;
  recent: { sequence: number; table: string; rows: number; time_s: number | null; is_upsert: boolean }[];
}

export interface VersionStatus {
  version: number;
  in_flight?: number;
  deltas?: DeltaStatus | null;
  signatures?: Record<string, string>;
  /** Why no request can run a signature, by its name. */
  not_run?: Record<string, string>;
  tables?: TableStatus[];
}

export interface Noted {
  at_s: number;
  /** "http" or "grpc", and the wire's name for what was called; "" if no method of this server was. */
  api: string;
  method: string;
  code: string;
  model: string;
  message: string;
  request_id: string;
  /** The caller's name, or the address of a client that is no known caller; "" if neither is known. */
  client: string;
  signature: string;
  rows: number;
  seconds: number;
  /** Of these, how long the signature ran. */
  run_seconds: number;
}

export interface RequestLog {
  prefix: string;
  sampling_rate: number;
  written: number;
  dropped: number;
  is_disabled: boolean;
}

export interface Setting {
  value: unknown;
  is_default: boolean;
}

export interface Statusz {
  attention: { model: string; message: string; alert: string }[];
  server: { uptime_s: number; rss_bytes?: number; slow_request_s: number | null };
  data_plane: { kind: string };
  models: Record<string, { versions: VersionStatus[] }>;
  overload: { limits?: Record<string, number>; models: { model: string; in_flight_bytes: number; refused: Record<string, number> }[] };
  slow_requests: Noted[];
  /** How many requests failed in the last `seconds` seconds. */
  recent_failures: { seconds: number; counts: { model: string; code: string; requests: number }[] };
  last_errors: Noted[];
  request_logs: Record<string, RequestLog>;
  settings: Record<string, Setting>;
}
