//! Finds the servable for a model, a version or a label. The table of routes is built once and swapped as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use super::servable::Servable;
use crate::forms::Version;

/// The versions of one model that a request may ask for.
#[derive(Default)]
pub struct ModelRoutes {
    /// The servables that answer, by version; None for a version that the core has no description of.
    pub versions: Vec<(i64, Option<Arc<Servable>>)>,
    /// Pairs of a label and its version.
    pub labels: Vec<(String, i64)>,
    /// The rate of requests that are written to the model's request log, from 0 to 1.
    pub log_rate: f64,
}

impl ModelRoutes {
    /// Returns the servable of a version; None if the reference must answer or refuse the request.
    #[must_use]
    pub fn find(&self, version: Version<'_>) -> Option<&Arc<Servable>> {
        let wanted = match version {
            Version::Latest => return self.versions.first()?.1.as_ref(),
            Version::Number(number) => number,
            Version::Label(label) => self.labels.iter().find(|(name, _)| name == label)?.1,
        };
        self.versions.iter().find(|(number, _)| *number == wanted)?.1.as_ref()
    }
}

/// The routes of all models. A request loads one snapshot and keeps the snapshot to its end.
#[derive(Default)]
pub struct Routes {
    models: HashMap<String, ModelRoutes>,
}

impl Routes {
    /// Takes the configured models by name, and sorts their versions.
    #[must_use]
    pub fn new(mut models: HashMap<String, ModelRoutes>) -> Self {
        for model in models.values_mut() {
            model.versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        }
        Routes { models }
    }

    /// Returns the routes of a configured model.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&ModelRoutes> {
        self.models.get(name)
    }

    /// Iterates over every published servable.
    pub fn servables(&self) -> impl Iterator<Item = &Arc<Servable>> {
        self.models.values().flat_map(|model| model.versions.iter().filter_map(|(_, servable)| servable.as_ref()))
    }
}
