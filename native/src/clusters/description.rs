//! Describes a Valkey or Redis cluster, and the keys under which a table's blocks lie there;
//! `service/core/description.py` writes both as JSON.

use std::time::Duration;

use serde::Deserialize;

/// A Valkey or Redis cluster, or a single server, and the settings with which rows are read from it; fields as in
/// `StoreAddress` of service/remote/address.py.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// Host and port of some nodes of the cluster; these nodes name the other nodes.
    pub nodes: Vec<(String, u16)>,
    pub has_tls: bool,
    /// Path of the CA certificates, in PEM, that sign the nodes' certificates; empty for the system's CA certificates.
    pub ca_file: String,
    /// Name of the Valkey or Redis user as which the server logs in; empty for the default user.
    pub user: String,
    /// Path of the file whose first line is the password for the cluster; empty if there is no such file.
    pub password_file: String,
    /// The password for the cluster if `password_file` is empty; an empty password means no authentication.
    #[serde(default)]
    pub own_password: String,
    /// Longest time for one read to get all its rows from the cluster, in milliseconds.
    pub timeout_ms: u64,
    /// Longest time that a read waits for one node of the cluster before it asks another one, in milliseconds.
    pub node_timeout_ms: u64,
    /// How many of a hundred reads the server may also send to a second node, because the first is slow; 0: none.
    pub hedge_percent: u32,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The debug text of an address has its nodes only, not its password, because descriptions are logged.
        formatter.debug_struct("Address").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl Address {
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub(super) fn node_timeout(&self) -> Duration {
        Duration::from_millis(self.node_timeout_ms)
    }
}

/// Where the rows of a table of a version lie in a cluster; fields as in `TableLayout` of service/remote/layout.py.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteDescription {
    pub address: Address,
    /// The text with which the key of every block of the table begins.
    pub tag: String,
    pub block_rows: usize,
    /// Number of shards; block `b` of the table belongs to shard `b % num_shards`.
    pub num_shards: usize,
    /// Bytes of one row of the table, including the row's scale.
    pub row_bytes: usize,
    /// Numbers of the default rows. A feature's default row replaces a row that can not be read; if the list is empty,
    /// such a read fails.
    pub default_rows: Vec<u64>,
    /// Whether a cached row of the table, however old, may replace a row that can not be read from the cluster.
    pub serves_stale: bool,
    /// For how long cached rows of the table are valid after the server last read the table's changes. None: the server
    /// does not follow the changes, and cached rows are always valid.
    pub fresh_ms: Option<u64>,
}
