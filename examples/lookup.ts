// Requests embeddings from a running server over HTTP, with fetch alone. The types of paths, bodies, answers and errors are
// generated from the server's OpenAPI document:
//
//   npx -y -p typescript@5.9.3 -p openapi-typescript@7.13.0 openapi-typescript \
//     http://127.0.0.1:8501/openapi.json -o examples/openapi.d.ts
//   npx -y -p node@22 node examples/lookup.ts http://127.0.0.1:8501 movielens
//
// With Node 22.18 or newer, `node examples/lookup.ts ...` is enough.

import type { components, paths } from "./openapi.d.ts";

type Schemas = components["schemas"];
type Json<T> = { content: { "application/json": T } };

/** The parameters, body and answer of a POST to a path. */
type Post<Path extends keyof paths> = paths[Path] extends {
  post: { parameters: { path: infer Where }; requestBody: Json<infer Body>; responses: { 200: Json<infer Answer> } };
}
  ? { where: Where; body: Body; answer: Answer }
  : never;

/** An error answer of the server; docs/errors.md says what each code means. */
export class ServerError extends Error {
  readonly code: Schemas["ErrorCode"];
  /** The models that you may see, if yours is unknown. */
  readonly models: string[];

  constructor(response: Response, answer: Schemas["Error"]) {
    super(answer.error);
    // An unexpected error, with status 500, has no code.
    this.code = (response.headers.get("X-Error-Code") ?? "INTERNAL") as Schemas["ErrorCode"];
    this.models = answer.models ?? [];
  }
}

/** Posts to a path of the OpenAPI document; returns the answer. */
export async function post<Path extends keyof paths>(
  server: string,
  path: Path,
  where: Post<Path>["where"],
  body: Post<Path>["body"],
): Promise<Post<Path>["answer"]> {
  const values = where as Record<string, string | number>;
  const filled = path.replace(/{(\w+)}/g, (_, name) => encodeURIComponent(values[name]));
  const response = await fetch(server + filled, { method: "POST", body: JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) {
    throw new ServerError(response, answer);
  }
  return answer;
}

declare const process: { argv: string[]; exitCode?: number };

async function main([server = "http://127.0.0.1:8501", model = "movielens"]: string[]): Promise<void> {
  const features = { user_id: [1, 2], genres: [["Comedy", "Drama"], []] };
  const { embeddings } = await post(server, "/v1/models/{model}:lookup", { model }, { features });
  // The feature is not a sequence, so it has one vector for each row.
  const users = embeddings.user_id as Schemas["Vector"][];
  console.log(`${users.length} users of ${users[0].length} numbers, genres ${JSON.stringify(embeddings.genres)}`);
  const path = "/v1/models/{model}/tables/{table}:neighbors";
  const near = await post(server, path, { model, table: "film" }, { ids: [50], k: 3, labels: true });
  console.log(`nearest to film 50: ${near.labels?.[0].join(", ")}`);
}

main(process.argv.slice(2)).catch((error) => {
  const isUnknown = error instanceof ServerError && error.code === "NOT_FOUND";
  console.error(isUnknown ? `${error.message}; there are: ${error.models.join(", ")}` : String(error));
  process.exitCode = 1;
});
