//! PredictRequest to PredictResponse.
