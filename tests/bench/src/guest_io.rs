//! The speed of a direct volume in its guest, through virtio-blk. It is compared with a directory
//! on the same disk, shared with the same guest through virtiofs. These are Kata's two paths, with
//! its defaults.
//!
//! The guest's page cache is passed by on both ways. The host's is not, on either: loop devices and
//! virtiofsd use it. So it is the ways that are compared, and not the disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use proto::csi::volume_capability::access_mode::Mode;
use serde_json::Value;
use tokio::process::Command;

use super::figures::Figure;
use super::report::median;
use guest::contract::Runtime;
use guest::scene::{Scene, mount};
use guest::vm::machine::{Ground, Machine};
use guest::vm::protocol::{GuestRequest, Load, Loaded, What};
use guest::vm::sandbox::{AT, Sandbox};
use guest::vm::turns;
use harness::process::Process;
use harness::wait::until;

/// In Debian's `qemu-system-common`.
const VIRTIOFSD: &str = "/usr/lib/qemu/virtiofsd";
/// Where the shared directory is mounted in the guest.
const SHARED: &str = "/run/shared";
/// The file that is loaded: as large as fits into the volume with room to spare.
const BYTES: u64 = 192 << 20;
const MIB: f64 = 1_048_576.0;

/// One kind of load: its name, its operation, its block size, and its number of threads.
const LOADS: [(&str, What, usize, usize); 7] = [
    ("read 1 MiB, in sequence", What::Read, 1 << 20, 1),
    ("write 1 MiB, in sequence", What::Write, 1 << 20, 1),
    ("read 4 KiB, anywhere", What::ReadAnywhere, 4096, 1),
    ("write 4 KiB, anywhere", What::WriteAnywhere, 4096, 1),
    ("read 4 KiB, anywhere, by 16", What::ReadAnywhere, 4096, 16),
    ("write 4 KiB, anywhere, by 16", What::WriteAnywhere, 4096, 16),
    ("a file of 4 KiB made and removed", What::Files, 4096, 1),
];

/// Measures in turns, each load for `time` on each way in each round, with the kernel that was
/// unpacked here.
///
/// # Errors
/// A program does not work, or something was left behind.
pub async fn measure(rounds: usize, time: Duration, kernel: &Path) -> anyhow::Result<Vec<Figure>> {
    ensure!(
        Path::new(VIRTIOFSD).exists(),
        "{VIRTIOFSD} is not there; it is in Debian's qemu-system-common"
    );
    let ground = Ground::new(kernel, None).await?;
    println!("guest: {}", ground.about);
    let (scene, volume) = turns::published("node", "ext4", "direct").await?;
    let ordinary = {
        let capability = mount(Mode::SingleNodeMultiWriter, "", "");
        until("a volume", || async { Ok(scene.create("ordinary", &[], capability.clone()).await?) })
            .await?
    };
    scene.stage(&ordinary).await?;
    let direct = scene.target("direct")?;
    let shared = scene.target("ordinary")?;
    scene.publish(&ordinary, &shared).await?;

    let (mut daemon, more) = share(&scene, &shared).await?;
    let machine = Machine::start(&ground, scene.stand.dir(), &more).await?;
    let sandbox = Sandbox::with(machine, &scene, Runtime::Go, &direct).await?;
    let source = "shared".to_owned();
    let kind = "virtiofs".to_owned();
    let options = Vec::new();
    let mounting = GuestRequest::Mount { source, kind, options, group: None, at: SHARED.into() };
    let _: Value = sandbox.ask(&mounting).await?;
    let mut figures = Vec::new();
    for load in LOADS {
        figures.extend(compared(&sandbox, load, rounds, time).await?);
        eprintln!("measured {}", load.0);
    }
    let _: Value = sandbox.ask(&GuestRequest::Unmount { at: SHARED.into() }).await?;
    sandbox.stop().await?;
    // It ends when QEMU has.
    daemon.ended(harness::wait::STOP).await?;
    scene.unpublish(&ordinary, &shared).await?;
    scene.delete(&ordinary).await?;
    scene.unpublish(&volume, &direct).await?;
    turns::ended(scene, &volume).await?;
    Ok(figures)
}

/// A virtiofsd for a directory, and the arguments of QEMU for it.
async fn share(scene: &Scene, directory: &Path) -> anyhow::Result<(Process, Vec<String>)> {
    let socket = scene.stand.at("shared.sock");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", VIRTIOFSD, &format!("--socket-path={socket}")]);
    // As Kata has it, but for its pool of one thread, which is not virtiofsd's default.
    command.args([
        "-o",
        &format!("source={}", directory.canonicalize()?.display()),
        "-o",
        "cache=auto",
    ]);
    let daemon = Process::start("virtiofsd", command, scene.stand.dir())?;
    until("virtiofsd's socket", || async {
        ensure!(Path::new(&socket).exists(), "it has logged:\n{}", daemon.log_tail());
        Ok(())
    })
    .await?;
    let chardev = format!("socket,id=shared,path={socket}");
    let device = "vhost-user-fs-pci,chardev=shared,tag=shared,queue-size=1024";
    let more = ["-chardev", &chardev, "-device", device];
    Ok((daemon, more.map(str::to_owned).to_vec()))
}

/// One load on both ways, in turns, so that a slow moment of the machine hits both.
async fn compared(
    sandbox: &Sandbox,
    (name, what, block, threads): (&str, What, usize, usize),
    rounds: usize,
    time: Duration,
) -> anyhow::Result<[Figure; 3]> {
    let files = what == What::Files;
    let ms = u64::try_from(time.as_millis())?;
    let mut seen = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (at, way) in [AT, SHARED].into_iter().enumerate() {
            let path = PathBuf::from(way).join("loaded");
            let load = Load { path, bytes: BYTES, block, what, threads, ms };
            let Loaded { bytes_per_s, per_s, direct } =
                sandbox.ask(&GuestRequest::Load(load)).await?;
            ensure!(
                direct || files,
                "{way} has no O_DIRECT: what is read there came out of the guest's memory"
            );
            seen[at].push(if files { per_s } else { bytes_per_s / MIB });
        }
    }
    let ratio =
        median(seen[0].iter().zip(&seen[1]).map(|(direct, shared)| direct / shared).collect());
    let [direct, shared] = seen.map(median);
    let unit = if files { "/s" } else { "MiB/s" };
    Ok([
        Figure::new(format!("{name}: direct"), direct, unit),
        Figure::new(format!("{name}: shared"), shared, unit),
        Figure::new(format!("{name}: direct to shared"), ratio, "×"),
    ])
}
