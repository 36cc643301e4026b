//! Checks that each driver's CSIDriver object requires attachments. edged waits for an attachment
//! in any case.

use k8s_openapi::api::storage::v1::CSIDriver;
use proto::admin::doctor::Finding;
use proto::names::DriverName;

/// Checks that a driver's CSIDriver object requires attachments.
pub(super) fn required(driver: &DriverName, live: Option<&CSIDriver>) -> Finding {
    const CHECK: &str = "attach-required";
    let about = format!("CSIDriver {driver}");
    let Some(live) = live else {
        return Finding::fault(
            CHECK,
            about,
            "there is none",
            "csi-cloud makes it when a node has reported the driver; `csi-cloud drivers` says \
             what keeps it from that",
        );
    };
    if live.spec.attach_required != Some(false) {
        return Finding::ok(CHECK, about, "volumes are attached");
    }
    Finding::fault(
        CHECK,
        about,
        "attachRequired is false, and edged waits for an attachment that nobody makes",
        format!(
            "set attach_required = true in [driver.{driver:?}], and run external-attacher for the \
             driver; the field cannot be changed, so when no volume of the driver is in use, \
             `kubectl delete csidriver {driver}`",
            driver = driver.as_str()
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use proto::admin::doctor::Verdict;

    #[test]
    fn edged_waits_for_an_attachment_of_every_volume() {
        let driver = "nfs.example".parse().unwrap();
        let of = |value: Option<bool>| {
            let object = json!({"metadata": {"name": "nfs.example"},
                "spec": {"attachRequired": value}});
            required(&driver, Some(&serde_json::from_value(object).unwrap()))
        };
        // The API's default is that it is required.
        assert_eq!(of(None).verdict, Verdict::Ok);
        assert_eq!(of(Some(true)).verdict, Verdict::Ok);
        let not = of(Some(false));
        assert_eq!(not.verdict, Verdict::Fault);
        assert!(not.advice.contains("[driver.\"nfs.example\"]"), "{}", not.advice);
        assert_eq!(required(&driver, None).verdict, Verdict::Fault);
    }
}
