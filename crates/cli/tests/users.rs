//! `weirpool broker` beside another user of the machine, who plants files. Ignored, visibly, unless root runs the tests: it
//! plays both users, by `setpriv` of util-linux.

use libtest_mimic::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    #[cfg(target_os = "linux")]
    let trials = linux::trials();
    #[cfg(not(target_os = "linux"))]
    let trials = Vec::new();
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg(target_os = "linux")]
mod linux {
    use libtest_mimic::{Failed, Trial};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    const VICTIM: u32 = 7001;
    const ATTACKER: u32 = 7002;

    /// Longer than any broker here takes to start or to refuse.
    const PATIENCE: Duration = Duration::from_secs(60);

    type Test = fn() -> Result<(), Failed>;

    pub(super) fn trials() -> Vec<Trial> {
        let missing = missing();
        if let Some(reason) = missing {
            eprintln!("ignored: {reason}");
        }
        let tests: [(&str, Test); 3] = [
            ("sticky_folder_is_refused", sticky_folder_is_refused),
            (
                "another_user_cannot_plant_files_in_a_private_folder",
                another_user_cannot_plant_files_in_a_private_folder,
            ),
            (
                "planted_record_is_refused_and_holds_nothing_up",
                planted_record_is_refused_and_holds_nothing_up,
            ),
        ];
        let trial = |(name, test): (&str, Test)| Trial::test(name, test);
        let trials = tests.map(trial).into_iter();
        trials
            .map(|trial| trial.with_ignored_flag(missing.is_some()))
            .collect()
    }

    fn missing() -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() {
            return Some("only root can play two users");
        }
        let tried = user(VICTIM).arg("true").status();
        match tried {
            Ok(status) if status.success() => None,
            _ => Some("setpriv of util-linux cannot change the user here"),
        }
    }

    /// A command of a user, without groups.
    fn user(id: u32) -> Command {
        let mut command = Command::new("setpriv");
        let id = id.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
        command
    }

    fn run(id: u32, script: &str, folder: &Path) -> bool {
        let mut command = user(id);
        let command = command.args(["sh", "-c", script]).current_dir(folder);
        command.stderr(Stdio::null()).status().unwrap().success()
    }

    /// A folder that both users can enter, with the program and a folder for the socket. It is not below the build folder,
    /// which other users may not be able to enter.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str, mode: u32) -> Self {
            let name = format!("weirpool-users-{name}-{}", std::process::id());
            let place = Self(Path::new("/var/tmp").join(name));
            let sockets = place.0.join("sockets");
            fs::create_dir_all(&sockets).unwrap();
            fs::set_permissions(&place.0, Permissions::from_mode(0o755)).unwrap();
            // By another process: a child that a test starts meanwhile would inherit a file that is open for writing, and
            // the program could not be run.
            let mut copy = Command::new("cp");
            copy.args([env!("CARGO_BIN_EXE_weirpool"), "weirpool"]);
            assert!(copy.current_dir(&place.0).status().unwrap().success());
            chown(&sockets, Some(VICTIM), Some(VICTIM)).unwrap();
            fs::set_permissions(&sockets, Permissions::from_mode(mode)).unwrap();
            place
        }

        fn weirpool(&self, arguments: &[&str]) -> Command {
            let mut command = user(VICTIM);
            command.arg(self.0.join("weirpool")).args(arguments);
            command.args(["--socket", "sockets/gpu0"]);
            command.current_dir(&self.0).stderr(Stdio::piped());
            command
        }

        fn broker(&self) -> Child {
            let mut command = self.weirpool(&["broker", "--capacity=1GiB"]);
            command.spawn().unwrap()
        }

        /// Waits until a broker listens.
        fn listens(&self) -> bool {
            let begin = Instant::now();
            while begin.elapsed() < PATIENCE {
                let mut top = self.weirpool(&["top", "--once"]);
                if top.stdout(Stdio::null()).output().unwrap().status.success() {
                    return true;
                }
            }
            false
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Waits for a broker that has to end by itself. Returns its message.
    fn refused(mut broker: Child) -> String {
        let begin = Instant::now();
        while broker.try_wait().unwrap().is_none() {
            if begin.elapsed() > PATIENCE {
                let _ = broker.kill();
                panic!("the broker runs, or hangs");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = broker.wait_with_output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        message
    }

    fn sticky_folder_is_refused() -> Result<(), Failed> {
        let place = Place::new("sticky", 0o1777);
        let message = refused(place.broker());
        assert!(
            message.contains("can be changed by other users"),
            "{message}"
        );
        assert!(message.contains("chmod go-w"), "{message}");
        assert_eq!(fs::read_dir(place.0.join("sockets"))?.count(), 0);
        Ok(())
    }

    fn another_user_cannot_plant_files_in_a_private_folder() -> Result<(), Failed> {
        let place = Place::new("private", 0o755);
        let mut broker = place.broker();
        assert!(place.listens());
        for plant in [
            "ln -s /etc/passwd sockets/gpu0.leases.new",
            ": > sockets/gpu0.leases.new",
            "mkfifo sockets/gpu0.leases.new",
            "rm -f sockets/gpu0 && test ! -e sockets/gpu0",
            "mv sockets moved",
        ] {
            assert!(!run(ATTACKER, plant, &place.0), "{plant}");
        }
        assert!(place.listens());
        let socket = fs::symlink_metadata(place.0.join("sockets/gpu0")).unwrap();
        assert_eq!((socket.uid(), socket.mode() & 0o777), (VICTIM, 0o600));
        broker.kill().unwrap();
        broker.wait().unwrap();
        Ok(())
    }

    /// The folder was open for a while.
    fn planted_record_is_refused_and_holds_nothing_up() -> Result<(), Failed> {
        let place = Place::new("record", 0o777);
        for plant in [
            "mkfifo -m 666 sockets/gpu0.leases",
            "ln -s /dev/zero sockets/gpu0.leases",
            "umask 0; echo '[]' > sockets/gpu0.leases",
        ] {
            let sockets = place.0.join("sockets");
            fs::set_permissions(&sockets, Permissions::from_mode(0o777))?;
            assert!(run(ATTACKER, plant, &place.0), "{plant}");
            fs::set_permissions(&sockets, Permissions::from_mode(0o700))?;
            let message = refused(place.broker());
            let is_named = message.contains("gpu0.leases is not a regular file");
            assert!(is_named && message.contains("remove it"), "{message}");
            fs::remove_file(sockets.join("gpu0.leases"))?;
        }
        Ok(())
    }
}
