"""Declares the bodies of the data routes' requests and answers, from which FastAPI makes the OpenAPI document.

Lists of ids and numbers stay JSON here, because only the signature of a request has their dtypes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Numbers = Annotated[Any, Field(description="A number, or nested lists of numbers.", examples=[[0.5, 1.5]])]


class LookupBody(BaseModel):
    """A lookup of features: ids, or keys of a vocabulary, one per row or one list per row."""

    model_config = ConfigDict(extra="forbid", strict=True)
    features: dict[str, Any] = Field(
        description="Feature -> one id for each row, or one list of ids for each row.",
        examples=[{"user_id": [1, 2], "genres": [["Comedy", "Drama"], []]}],
    )
    weights: dict[str, Any] = Field(
        {}, description="Feature with lists of ids -> one list of factors for each row.", examples=[{}]
    )
    signature_name: str = Field("lookup", description="The lookup signature.")


class PredictBody(BaseModel):
    """A run of a signature, on rows ("instances") or on columns ("inputs"); TensorFlow Serving ignores other keys."""

    model_config = ConfigDict(extra="allow", strict=True)
    signature_name: str = Field("", description="The signature; serving_default if it is missing or empty.")
    instances: Any = Field(
        None, description="One object for each row: input -> value; plain values for a signature with one input."
    )
    inputs: Any = Field(None, description="Input -> values of all rows; plain values for a signature with one input.")


class RowsBody(BaseModel):
    """A request for rows of a table."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ids: list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] = Field(description="Row numbers.", examples=[[0, 1]])
    labels: bool = Field(False, description="Labels beside the rows; this server has none and refuses true.")


class LookupAnswer(BaseModel):
    """The answer to a lookup: one vector for each row, or one sequence of vectors."""

    embeddings: dict[str, Numbers]


class PredictAnswer(BaseModel):
    """The answer to a predict: "predictions" to rows, "outputs" to columns."""

    predictions: list[Any] | None = None
    outputs: Any = None


class RowsAnswer(BaseModel):
    """The answer to a request for rows of a table."""

    rows: list[list[float]]


class VersionState(BaseModel):
    """The state of one version of a model, newest version first."""

    version: str
    state: Literal["UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
    status: dict[str, str]


class StatusAnswer(BaseModel):
    """The states of a model's versions."""

    model_version_status: list[VersionState]


class ErrorAnswer(BaseModel):
    """The answer to a request that is refused; the header X-Error-Code has the canonical code."""

    error: str
