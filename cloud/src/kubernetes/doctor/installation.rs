//! Checks the API server for `csi-cloud doctor`: its time, csi-cloud's rights, the kinds, the
//! sidecars.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use http::header::DATE;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use kube::client::Body;
use proto::admin::doctor::Finding;
use proto::admin::doctor::certificate::clock;
use proto::csi::{Capabilities, Local};
use proto::host::chain;
use proto::names::DriverName;
use tokio::time::timeout;

use crate::kubernetes::api::ApiError;
use crate::kubernetes::doctor::examine::Doctor;
use crate::kubernetes::doctor::lookup::Lookup;
use crate::kubernetes::doctor::rights::{Part, Right};
use crate::kubernetes::doctor::snapshots::Kinds;
use crate::kubernetes::doctor::{rights, sidecars, snapshots};
use crate::state::capabilities::capability_names;

/// The time limit of each question.
const PATIENCE: Duration = Duration::from_secs(5);
/// A question without an answer in time.
const LATE: &str = "no answer within 5 s";

impl Doctor {
    /// Checks what csi-cloud itself needs in Kubernetes.
    pub async fn installation(&self) -> Vec<Finding> {
        let server = match timeout(PATIENCE, self.server_time()).await {
            Ok(Ok(time)) => time,
            Ok(Err(error)) => return vec![away(&chain(&error))],
            Err(_) => return vec![away(LATE)],
        };
        let (rights, kinds, groups, images) = tokio::join!(
            self.rights(),
            self.kinds(&snapshots::SNAPSHOTS),
            self.kinds(&snapshots::GROUPS),
            self.images(),
        );
        let mut findings = vec![Finding::ok("api-server", "API server", "it answers")];
        findings.extend(server.map(|time| clock("API server", SystemTime::now(), time)));
        findings.extend(rights::findings(&rights));
        findings.extend([kinds, groups]);
        findings.extend(sidecars::findings(&images));
        findings
    }

    /// The time at the API server, if it says so.
    async fn server_time(&self) -> Result<Option<SystemTime>, ApiError> {
        let asked = async {
            let request = http::Request::get("/version").body(Body::empty());
            let request = request.map_err(kube::Error::HttpError)?;
            self.server.client.send(request).await
        };
        let answer = self.server.ask("version get", asked).await?;
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
        Ok(date.and_then(|date| httpdate::parse_http_date(date).ok()))
    }

    async fn rights(&self) -> Vec<(Right, Result<bool, String>)> {
        let parts = [
            Some(Part::Base),
            self.joins.then_some(Part::Join),
            self.metadata.then_some(Part::Metadata),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        let asked = rights::of(&parts).into_iter().map(|right| async move {
            let answer = timeout(PATIENCE, self.may(right)).await;
            let answer = answer.map_err(|_| LATE.to_owned());
            (right, answer.and_then(|answer| answer.map_err(|error| chain(&error))))
        });
        join_all(asked).await
    }

    async fn may(&self, right: Right) -> Result<bool, ApiError> {
        let Right { group, resource, verb, .. } = right;
        let attributes = ResourceAttributes {
            group: Some(group.into()),
            resource: Some(resource.into()),
            verb: Some(verb.into()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let api = Api::<SelfSubjectAccessReview>::all(self.server.client.clone());
        let params = PostParams::default();
        let reviewed = self.server.ask("access review", api.create(&params, &review)).await?;
        Ok(reviewed.status.is_some_and(|status| status.allowed))
    }

    /// What is said of these kinds.
    async fn kinds(&self, of: &Kinds) -> Finding {
        let asked = self.server.client.list_api_group_resources(of.group);
        let kinds = match timeout(PATIENCE, self.server.ask("snapshot kinds", asked)).await {
            Ok(answered) => answered
                .map(|list| list.resources.into_iter().map(|kind| kind.name).collect())
                .into(),
            Err(_) => Lookup::Hidden(LATE.into()),
        };
        snapshots::finding(of, &self.capable(of.capability), &kinds)
    }

    /// The drivers with a capability, as far as they have said so.
    fn capable(&self, (kind, name): (Capabilities, &str)) -> Vec<DriverName> {
        let can = |driver: &&DriverName| {
            let answer = self.store.read(|state| {
                let info = state.driver(driver).map(|of| of.info());
                info.and_then(|info| info.answer(Local::Capabilities(kind), false).ok()?)
            });
            let names = answer.map(|answer| capability_names(kind, &answer)).unwrap_or_default();
            names.iter().any(|can| can == name)
        };
        self.drivers.iter().filter(can).cloned().collect()
    }

    /// The images of all pods in csi-cloud's namespace.
    async fn images(&self) -> Lookup<Vec<String>> {
        let api = Api::<Pod>::default_namespaced(self.server.client.clone());
        let listed = self.server.list("Pod list", &api, |pod| Some(sidecars::images(&pod)));
        match timeout(PATIENCE, listed).await {
            Ok(listed) => listed.map(|images: Vec<Vec<String>>| images.concat()).into(),
            Err(_) => Lookup::Hidden(LATE.into()),
        }
    }
}

fn away(why: &str) -> Finding {
    let advice = "look at the address and the token in [kubernetes] and at the network; volumes go \
                  on without it, and nodes, Events and metadata wait";
    Finding::fault("api-server", "API server", why, advice)
}
