"""Network servers over the engine; no branch on model, backend or signature here."""
