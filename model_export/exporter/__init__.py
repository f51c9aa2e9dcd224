"""From trained variables to a verified artifact: signatures, manifest, numpy oracle; knows no data set."""
