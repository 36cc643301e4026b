//! Tests that spend their time waiting for links, deadlines and restarts. `make test` runs more of
//! them at the same time than there are cores; none asserts that a call takes less than a second.

mod admin;
mod bad_starts;
mod claims;
mod colocate;
mod dead_drivers;
mod discovery;
mod doctor;
mod edge_topology;
mod endpoints;
mod expansion;
mod failover;
mod formats;
mod history;
mod hostile;
mod hung_program;
mod kube;
mod limits;
mod links;
mod net;
mod offline_front;
mod page;
mod proxy;
mod quotas;
mod renewal;
mod replicas;
mod restart;
mod rotation;
mod routing;
mod secrets;
mod shared_creates;
mod silent_node;
mod socket_relay;
mod start;
mod state;
mod trust;
