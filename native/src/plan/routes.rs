//! The routing table: finds the servable for a model name and a version or label. A new table replaces the old one as a
//! whole.

use std::collections::HashMap;
use std::sync::Arc;

use super::servable::Servable;

/// How a request names the version of a model: the latest version, a number or a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version<'a> {
    /// The latest version.
    Latest,
    /// The model version with this number.
    Number(i64),
    /// The model version to which this label points.
    Label(&'a str),
}

/// The versions and labels of one model.
#[derive(Default)]
pub struct ModelRoutes {
    /// Pairs of a version of the model and its servable; None for a version that only the reference server can run.
    pub versions: Vec<(i64, Option<Arc<Servable>>)>,
    /// Pairs of one of the model's labels, such as "stable", and the version number to which it points.
    pub labels: Vec<(String, i64)>,
    /// The fraction of requests, from 0 to 1, that are written to the model's request log.
    pub log_rate: f64,
}

impl ModelRoutes {
    /// Returns the servable of a version. None if the model has no such version or label, or if only the reference
    /// server can run it.
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

/// The routing table: the versions and labels of all models. A request uses one table from its start to its end.
#[derive(Default)]
pub struct Routes {
    // Models and their names are shared with the tables before and after, so that a change of one of a thousand models
    // copies nothing but pointers.
    models: HashMap<Arc<str>, Arc<ModelRoutes>>,
}

impl Routes {
    /// Returns a table that differs from this one in some models; sorts their versions, the latest first.
    ///
    /// `changed`: the new or changed models, by name. `removed`: names of models that no request may reach any more.
    #[must_use]
    pub fn with(&self, changed: HashMap<String, ModelRoutes>, removed: &[String]) -> Self {
        let mut models = self.models.clone();
        for name in removed {
            models.remove(name.as_str());
        }
        for (name, mut model) in changed {
            model.versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
            models.insert(name.into(), Arc::new(model));
        }
        Routes { models }
    }

    /// Returns the versions and labels of a configured model; None for any other name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&ModelRoutes> {
        self.models.get(name).map(AsRef::as_ref)
    }
}
