//! Power cuts of a whole node: kubelet, containerd, csi-edge and drivers die at once, at a random
//! step of its volumes' lives. csi-cloud is away until the volumes are back; the API server is not,
//! because this kubelet needs it at its start.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use super::pods::{READ, WRITE};
use super::scene::{Scene, claim, pod_with};
use super::shared::many;
use super::texts::{READ_RAW, WRITE_RAW, at, raw_claim, raw_pod, sized};
use super::traces::{Traces, of_volumes};
use crate::stand::files::Files;
use crate::stand::node::Node;
use crate::stand::objects::{list, within};
use crate::stand::{Cluster, DRIVER, SHARED};

/// The node.
pub(super) const NODE: &str = "n1";
/// How long a volume may take after the kubelet asks for it.
pub(super) const BACK: Duration = Duration::from_secs(10);
/// How long a node's start may take, with all its programs and containers.
const SOON: Duration = Duration::from_secs(180);
/// How many pods keep their volumes, each with one of files and a raw one.
const KEPT: usize = 2;
/// How many lives are led at once.
const LIVES: usize = 3;

/// How the names of what the lives are led with begin.
const LIFE: &str = "life-";

/// A volume of a pod that comes back.
struct ReturningVolume {
    traces: Traces,
    /// What its node mounts of it.
    mounts: usize,
}

/// A pod that comes back after a power cut, and its volumes.
pub(super) struct Back {
    /// The pod's name.
    pub(super) pod: String,
    volumes: Vec<ReturningVolume>,
    /// At the driver's: a line for each start of the pod.
    starts: PathBuf,
}

/// How often the power is cut: `WHOLE=n`, else once.
///
/// # Errors
/// That is no number.
pub(super) fn number() -> anyhow::Result<u32> {
    let number = of_environment("WHOLE", 1)?;
    ensure!(number > 0, "WHOLE=0 cuts no power");
    Ok(number)
}

fn of_environment(name: &str, usual: u32) -> anyhow::Result<u32> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => text.parse().with_context(|| format!("{name}={text}")),
        _ => Ok(usual),
    }
}

/// Cuts the power of a node. Each time all volumes of pods that stay are back within [`BACK`], each
/// once and with its data. In the end nothing is left over.
pub(super) async fn cuts(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node(NODE)?;
    let seed = of_environment("SEED", 1)?;
    let mut random = StdRng::seed_from_u64(seed.into());
    let devices = node.devices()?;
    let kept = begin(scene, node).await?;
    for number in 1..=number()? {
        let done = once(scene, node, &kept, &mut random).await;
        let told = done.with_context(|| format!("power cut {number} of SEED={seed}"))?;
        println!("{:24} {:>8}  cut {number}: {told}", "", "");
    }
    end(scene, node, &kept).await?;
    ensure!(node.devices()? == devices, "left over: {:?}", node.devices()?);
    Ok(())
}

/// Pods that keep their volumes over power cuts.
pub(super) async fn begin(scene: &Scene<'_>, node: &Node) -> anyhow::Result<Vec<Back>> {
    let mut pods: Vec<_> = (0..KEPT).map(|number| (format!("kept-{number}"), "late")).collect();
    if Files::missing().is_empty() {
        pods.push(("kept-shared".to_owned(), "shared"));
    }
    for (name, class) in &pods {
        let files = if *class == "shared" { many(name) } else { claim(name, class) };
        scene.apply(&(files + &raw_claim(&format!("{name}-raw"), "late"))).await?;
        scene.apply(&at(&of_both(name), NODE)).await?;
    }
    let begun = pods.iter().map(|(name, class)| async move {
        scene.ready(&[name]).await?;
        let mut volumes = Vec::new();
        for claim in [name.clone(), format!("{name}-raw")] {
            let traces = Traces::of(scene, &claim).await?;
            let mounts = traces.mounts(node)?.len();
            volumes.push(ReturningVolume { traces, mounts });
        }
        let driver = if *class == "shared" { SHARED } else { DRIVER };
        let driver = node.drivers.iter().find(|one| one.name == driver).context("no driver")?;
        let handle = &volumes.first().context("no volume")?.traces.handle;
        let starts = driver.state.join("volumes").join(handle).join("data/starts");
        Ok(Back { pod: name.clone(), volumes, starts })
    });
    try_join_all(begun).await
}

/// A pod that writes to both volumes when it starts first. Later it starts only if the raw one has
/// what it wrote, and always writes a line more.
fn of_both(name: &str) -> String {
    let script = format!(
        "if [ -e /data/starts ]; then {READ_RAW} || exit 1; \
         else echo raw at {name} | dd of=/dev/disk bs=512 count=1 conv=sync,notrunc; fi && \
         echo {name} >> /data/starts && sync && exec sleep 2147483647"
    );
    let container = "volumeMounts: [{name: data, mountPath: /data}]\n    \
                     volumeDevices: [{name: disk, devicePath: /dev/disk}]";
    let volume = |name: &str, claim: &str| {
        format!("{{name: {name}, persistentVolumeClaim: {{claimName: {claim}}}}}")
    };
    let volumes = format!("[{}, {}]", volume("data", name), volume("disk", &format!("{name}-raw")));
    pod_with(name, container, &volumes, &script, &format!("grep -q {name} /data/starts"))
}

/// One power cut, and what it was like.
async fn once(
    scene: &Scene<'_>,
    node: &Node,
    kept: &[Back],
    random: &mut StdRng,
) -> anyhow::Result<String> {
    let cluster = scene.cluster;
    let before = kept.iter().map(starts).collect::<anyhow::Result<Vec<_>>>()?;
    let moment = Duration::from_millis(random.random_range(200..9_000));
    let lives = (0..LIVES).map(|number| lead(scene, number, random.random()));
    tokio::select! {
        biased;
        () = sleep(moment) => {}
        ended = try_join_all(lives) => ended.map(drop)?,
    }
    let log = node.worker.kubelet.log().len();
    tokio::try_join!(node.cut(), cluster.cloud.program.kill())?;
    let late = Duration::from_millis(random.random_range(0..2_000));
    let begun = Instant::now();
    let back = kept.iter().map(|back| is_back(node, back, log));
    let (on, back) = tokio::join!(node.switch_on(late), try_join_all(back));
    on?;
    let slowest = back?.into_iter().max().unwrap_or_default();
    let volumes = begun.elapsed();
    for (back, before) in kept.iter().zip(before) {
        within(&format!("{} to find its data", back.pod), SOON, || async {
            let starts = starts(back)?;
            ensure!(starts > before, "it has started {starts} times, and {before} before");
            Ok(())
        })
        .await?;
        scene.ready(&[&back.pod]).await?;
    }
    each_once(node, kept)?;
    // Without csi-cloud none of them can be deleted yet.
    let lived = lived(scene).await?;
    cluster.cloud.program.run().await?;
    settle(scene, lived).await?;
    each_once(node, kept)?;
    ensure!(slowest <= BACK, "a volume was back only {slowest:?} after it was asked for");
    Ok(format!(
        "after {:.1} s; each volume back {:.1} s after it was asked for, all {:.1} s after \
         the start",
        moment.as_secs_f64(),
        slowest.as_secs_f64(),
        volumes.as_secs_f64()
    ))
}

/// The lines that a pod has written, one at each start.
fn starts(back: &Back) -> anyhow::Result<usize> {
    let text = std::fs::read_to_string(&back.starts);
    let text = text.with_context(|| format!("{} has lost its data", back.pod))?;
    ensure!(text.lines().all(|line| line == back.pod), "{} has other data: {text}", back.pod);
    Ok(text.lines().count())
}

/// Waits until a pod's volumes are mounted, and says how long the slowest took after the kubelet
/// asked for it.
pub(super) async fn is_back(node: &Node, back: &Back, from: usize) -> anyhow::Result<Duration> {
    let times = back.volumes.iter().map(|volume| async move {
        let name = &volume.traces.name;
        // The second is the first about a volume that is not attached.
        let asked = ["WaitForAttach entering", "MountDevice succeeded"];
        let asked = asked.map(|what| format!("{what} for volume \\\"{name}\\\""));
        within(&format!("the kubelet to ask for {name}"), SOON, || async {
            let log = node.worker.kubelet.log();
            let new = log.get(from..).unwrap_or_default();
            ensure!(asked.iter().any(|asked| new.contains(asked)), "it does not");
            Ok(())
        })
        .await?;
        let begun = Instant::now();
        within(&format!("{name} of {}", back.pod), SOON, || async {
            let mounts = volume.traces.mounts(node)?;
            ensure!(mounts.len() >= volume.mounts, "mounted: {mounts:?}");
            Ok(())
        })
        .await?;
        Ok(begun.elapsed())
    });
    try_join_all(times).await.map(|times| times.into_iter().max().unwrap_or_default())
}

/// Each kept volume is mounted as before, and not twice.
pub(super) fn each_once(node: &Node, kept: &[Back]) -> anyhow::Result<()> {
    for volume in kept.iter().flat_map(|back| &back.volumes) {
        let mounts = volume.traces.mounts(node)?;
        ensure!(mounts.len() == volume.mounts, "{} is mounted: {mounts:?}", volume.traces.name);
    }
    Ok(())
}

/// A pod with a new claim starts, its volume grows, the pod goes and comes again, and all ends. It
/// goes on until the power is cut.
async fn lead(scene: &Scene<'_>, number: usize, seed: u64) -> anyhow::Result<()> {
    let is_raw = number % 2 == 1;
    for turn in 0.. {
        let name = format!("{LIFE}{number}-{seed:x}-{turn}");
        let (claim, pod) = match is_raw {
            true => (raw_claim(&name, "late"), raw_pod(&name, &name, WRITE_RAW, READ_RAW)),
            false => (claim(&name, "late"), super::scene::pod(&name, &name, WRITE, READ)),
        };
        scene.apply(&claim).await?;
        scene.apply(&at(&pod, NODE)).await?;
        scene.ready(&[&name]).await?;
        scene.apply(&sized(&claim, "32Mi")).await?;
        scene.delete::<Pod>(&name).await?;
        scene.apply(&at(&pod, NODE)).await?;
        scene.ready(&[&name]).await?;
        scene.delete::<Pod>(&name).await?;
        scene.delete::<PersistentVolumeClaim>(&name).await?;
    }
    Ok(())
}

/// The volumes of the lives, also those whose claims are gone.
async fn lived(scene: &Scene<'_>) -> anyhow::Result<Vec<Traces>> {
    let is_life = |volume: &&PersistentVolume| {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim.and_then(|claim| claim.name.as_deref()).is_some_and(|name| name.starts_with(LIFE))
    };
    let volumes = Api::<PersistentVolume>::all(scene.cluster.client.clone());
    let volumes = list(&volumes).await?;
    Ok(volumes.iter().filter(is_life).filter_map(Traces::of_volume).collect())
}

/// Waits until all pods of the lives run that are not told to end, and then ends them and their
/// claims. A claim that the cut left without a pod is never bound. Nothing is left of any volume.
async fn settle(scene: &Scene<'_>, mut volumes: Vec<Traces>) -> anyhow::Result<()> {
    let pods = list(&scene.api::<Pod>()).await?;
    let is_life = |pod: &&Pod| pod.name_any().starts_with(LIFE);
    for pod in pods.iter().filter(is_life) {
        if pod.metadata.deletion_timestamp.is_none() {
            scene.ready(&[&pod.name_any()]).await?;
            scene.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await?;
        }
    }
    volumes.extend(lived(scene).await?);
    let claims = list(&scene.api::<PersistentVolumeClaim>()).await?;
    for name in claims.iter().map(ResourceExt::name_any).filter(|name| name.starts_with(LIFE)) {
        if scene.api::<Pod>().get_opt(&name).await?.is_some() {
            scene.gone::<Pod>(&name).await?;
        }
        // It may have been told to end before the cut.
        let _ = scene.api::<PersistentVolumeClaim>().delete(&name, &DeleteParams::default()).await;
        scene.gone::<PersistentVolumeClaim>(&name).await?;
    }
    for traces in volumes {
        traces.gone(scene.cluster).await?;
    }
    Ok(())
}

/// All pods go, and nothing is left over.
pub(super) async fn end(scene: &Scene<'_>, node: &Node, kept: &[Back]) -> anyhow::Result<()> {
    let cluster: &Cluster = scene.cluster;
    for back in kept {
        scene.delete::<Pod>(&back.pod).await?;
        for claim in [back.pod.clone(), format!("{}-raw", back.pod)] {
            scene.delete::<PersistentVolumeClaim>(&claim).await?;
        }
    }
    for volume in kept.iter().flat_map(|back| &back.volumes) {
        volume.traces.gone(cluster).await?;
    }
    within("the end of all mounts", SOON, || async {
        let mounts = of_volumes(node)?;
        ensure!(mounts.is_empty(), "left over: {mounts:?}");
        Ok(())
    })
    .await
}
