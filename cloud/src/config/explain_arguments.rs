//! The command line of `csi-cloud explain`.

use clap::Subcommand;
use proto::names::{DriverName, NodeName};

use crate::config::show_arguments::Show;
use crate::explain::subject::Namespaced;

/// What can be explained.
#[derive(Debug, Subcommand)]
pub enum ExplainCommand {
    /// A PersistentVolumeClaim
    Pvc {
        /// Its namespace and name
        #[arg(value_name = "NAMESPACE/NAME")]
        name: Namespaced,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// A PersistentVolume
    Pv {
        /// Its name
        name: String,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// A Pod, with all its claims
    Pod {
        /// Its namespace and name
        #[arg(value_name = "NAMESPACE/NAME")]
        name: Namespaced,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// A VolumeSnapshot
    Snapshot {
        /// Its namespace and name
        #[arg(value_name = "NAMESPACE/NAME")]
        name: Namespaced,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// A volume, by the driver's id
    Volume {
        /// Its driver
        driver: DriverName,
        /// Its id
        id: String,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// A node, with its drivers
    Node {
        /// Its name
        node: NodeName,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// A driver, with the nodes at which it cannot make volumes
    Driver {
        /// Its name
        driver: DriverName,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
}
