// Errors with the stable codes of ropewalk.

/** An error with a code of `ropewalk.errors`, what was found, and what to do. */
export class RopewalkError extends Error {
  readonly code: string;
  readonly detail: string;
  readonly advice: string;
  readonly fields: Record<string, unknown>;

  constructor(code: string, detail: string, fields: Record<string, unknown> = {}, advice = "") {
    super(detail);
    this.name = "RopewalkError";
    this.code = code;
    this.detail = detail;
    this.fields = fields;
    this.advice = advice;
  }
}

/** A refusal by the server: its `application/problem+json` (RFC 9457), or a status without one. */
export class HttpProblem extends RopewalkError {
  readonly status: number;
  readonly type: string;
  readonly title: string;
  readonly retryAfterSeconds: number | null;

  constructor(status: number, problem: Record<string, unknown>, retryAfterSeconds: number | null = null) {
    const { type, title, code, detail, advice, status: _, ...fields } = problem;
    super(text(code, "Internal"), text(detail, `the server answered with status ${status}`), fields, text(advice, ""));
    this.name = "HttpProblem";
    this.status = status;
    this.type = text(type, "about:blank");
    this.title = text(title, this.code);
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

const text = (value: unknown, otherwise: string): string => (typeof value === "string" ? value : otherwise);
