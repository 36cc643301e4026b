//! The part of `nri.pkg.api.v1alpha1` that this plugin reads or writes; other fields are skipped.
//!
//! The field numbers are those of NRI's `api.proto` of v0.12, unchanged since v0.2.

use std::collections::HashMap;

/// The service that the plugin serves.
pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The service that it calls.
pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// The event of a container's creation, as a bit of [`ConfigureResponse::events`]: NRI's event 4.
pub const CREATE_CONTAINER: i32 = 1 << 3;

/// The event of a container's end: NRI's event 10.
pub const STOP_CONTAINER: i32 = 1 << 9;

/// The event of a container's removal, also of one that was not made in the end: NRI's event 11.
pub const REMOVE_CONTAINER: i32 = 1 << 10;
/// The number of that event in [`StateChangeEvent`].
pub const CONTAINER_REMOVED: i32 = 11;

/// A container's state after its end.
pub const CONTAINER_STOPPED: i32 = 4;

/// The identity of the plugin.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegisterPluginRequest {
    /// Its name.
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    /// Two digits; plugins are called in this order.
    #[prost(string, tag = "2")]
    pub plugin_idx: String,
}

/// A runtime's name and version.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ConfigureRequest {
    /// For example `containerd`.
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub runtime_version: String,
}

/// The events that the plugin wants.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ConfigureResponse {
    /// Bits, one for each event.
    #[prost(int32, tag = "2")]
    pub events: i32,
}

/// The pods and containers that run already.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SynchronizeRequest {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodSandbox>,
    /// Their containers.
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<Container>,
    /// True if more of them follow.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// The plugin's changes of that: none.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SynchronizeResponse {
    /// True if it takes more; a copy of the request's field.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// A pod's sandbox.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodSandbox {
    /// The sandbox's id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The pod's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its UID.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// Its namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// The runtime handler of the pod; empty for the default one.
    #[prost(string, tag = "7")]
    pub runtime_handler: String,
}

/// A container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Container {
    /// Its id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The id of its pod's sandbox.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    /// Its name in the pod.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its state, as a number of NRI's `ContainerState`.
    #[prost(int32, tag = "4")]
    pub state: i32,
    /// Its mounts.
    #[prost(message, repeated, tag = "9")]
    pub mounts: Vec<Mount>,
}

/// A mount, as OCI has it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mount {
    /// The path in the container.
    #[prost(string, tag = "1")]
    pub destination: String,
    /// Its type.
    #[prost(string, tag = "2")]
    pub r#type: String,
    /// The path on the host.
    #[prost(string, tag = "3")]
    pub source: String,
    /// Its options.
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// A container that is about to be created.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateContainerRequest {
    /// Its pod.
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
    /// The container.
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

/// An event that needs no answer. NRI sends the removal of a container so before v0.12.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StateChangeEvent {
    /// Its number.
    #[prost(int32, tag = "1")]
    pub event: i32,
    /// The container.
    #[prost(message, optional, tag = "3")]
    pub container: Option<Container>,
}

/// A container that has ended, or is removed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StopContainerRequest {
    /// Its pod.
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
    /// The container.
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

/// The plugin's changes of others after that: none.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StopContainerResponse {}

/// The changes of a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateContainerResponse {
    /// The changes.
    #[prost(message, optional, tag = "1")]
    pub adjust: Option<ContainerAdjustment>,
}

/// Changes of a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAdjustment {
    /// Annotations to be added.
    #[prost(map = "string, string", tag = "2")]
    pub annotations: HashMap<String, String>,
    /// Mounts, each in place of the one with its destination.
    #[prost(message, repeated, tag = "3")]
    pub mounts: Vec<Mount>,
}
