//! `ats-run chat` on a terminal: a pseudo-terminal stands in for the person's. What a script can see is in `chat.rs`.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tests::binary;
use tests::scripted::{Script, Token};

/// Far beyond what any of this takes, so that a busy machine fails no test.
const PATIENCE: Duration = Duration::from_secs(60);

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const ENTER: &str = "\r";
const UP: &str = "\x1b[A";

/// A person's terminal with a chat in it.
struct Terminal {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// What came since the last look.
    seen: String,
    child: Child,
    folder: tempfile::TempDir,
}

/// Answers `four` to what ends with x, and without end to what ends with y.
fn model(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("model.gguf");
    let end = Token::Control("<|im_end|>");
    let (yes, no) = (Token::Word("yes"), Token::Word("no"));
    let script = Script::new().says(&[Token::Bytes(b"x"), Token::Word("four"), end]).role("eos", end);
    let script = script.says(&[Token::Bytes(b"y"), yes, no, yes]);
    script.key("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}").write(&path);
    let arguments = ["compile", path.to_str().expect("UTF-8"), "--context", "65536"];
    tests::run("ats-plan", folder.path(), &arguments).good();
    path
}

impl Terminal {
    fn open(columns: u16) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let model = model(&folder);
        Self::open_in(folder, &model, columns)
    }

    fn open_in(folder: tempfile::TempDir, model: &PathBuf, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        let name = ptsname(&master, Vec::new()).expect("a name").into_string().expect("ASCII");
        let open = || File::options().read(true).write(true).open(&name).expect("opens");
        // A session of its own, so that Ctrl-C on this terminal reaches the chat and nobody else.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(binary("ats-run")).arg("chat").arg(model).arg("--greedy");
        command.env("XDG_CACHE_HOME", folder.path()).env("XDG_STATE_HOME", folder.path()).env("TERM", "xterm");
        command.env_remove("NO_COLOR").stdin(open()).stdout(open()).stderr(open());
        let child = command.spawn().expect("starts");
        drop(command);
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().expect("clones");
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { keyboard, screen: receiver, seen: String::new(), child, folder }
    }

    /// Types a line at the prompt.
    #[track_caller]
    fn enter(&mut self, line: &str) {
        self.see("> ");
        self.press(line);
        self.press(ENTER);
    }

    /// Leaves at the prompt, as one does; the folder.
    #[track_caller]
    fn leave(mut self) -> tempfile::TempDir {
        self.see("> ");
        self.press(CTRL_D);
        let (code, _, folder) = self.end();
        assert_eq!(code, Some(0));
        folder
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("types");
    }

    /// Waits until `text` is on the screen, and forgets everything up to there; what was before it.
    #[track_caller]
    fn see(&mut self, text: &str) -> String {
        loop {
            if let Some((before, after)) = self.seen.split_once(text) {
                let before = before.to_owned();
                self.seen = after.to_owned();
                return before;
            }
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} does not come; on the screen is {:?}", self.seen),
            }
        }
    }

    /// Waits for the end; the exit code and what is left of the screen.
    #[track_caller]
    fn end(mut self) -> (Option<i32>, String, tempfile::TempDir) {
        let start = Instant::now();
        let code = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end; on the screen is {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(20));
        };
        while let Ok(bytes) = self.screen.recv_timeout(Duration::from_secs(1)) {
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        (code, self.seen, self.folder)
    }
}

#[test]
fn a_conversation_ends_with_ctrl_d() {
    let mut terminal = Terminal::open(80);
    terminal.see("context 65536 tokens; /help lists the commands");
    terminal.enter("ax");
    terminal.see("four\r\n");
    terminal.see("2 generated at");
    terminal.see("stop]");
    terminal.enter("/bogus");
    terminal.see("error: `/bogus` is no command");
    terminal.leave();
}

#[test]
fn lines_that_come_all_at_once_are_not_lost() {
    let mut terminal = Terminal::open(80);
    terminal.enter("ax\r/bogus\rbx");
    terminal.see("four\r\n");
    terminal.see("`/bogus` is no command");
    terminal.see("four\r\n");
    terminal.leave();
}

#[test]
fn ctrl_c_stops_an_answer_and_another_leaves() {
    let mut terminal = Terminal::open(80);
    terminal.enter("y");
    terminal.see("yesnoyes");
    terminal.press(CTRL_C);
    terminal.see("interrupted]");
    terminal.enter("x");
    terminal.see("four\r\n");
    terminal.enter("y");
    terminal.see("yesnoyes");
    terminal.press(CTRL_C);
    terminal.see("interrupted]");
    terminal.see("> ");
    terminal.press(CTRL_C);
    assert_eq!(terminal.end().0, Some(130));
}

#[test]
fn ctrl_c_at_the_prompt_warns_first() {
    let mut terminal = Terminal::open(80);
    terminal.see("> ");
    terminal.press("half a line");
    terminal.see("line");
    terminal.press(CTRL_C);
    terminal.see("Ctrl-C again leaves");
    terminal.enter("x");
    terminal.see("four\r\n");
    terminal.see("> ");
    terminal.press(CTRL_C);
    terminal.see("Ctrl-C again leaves");
    terminal.see("> ");
    terminal.press(CTRL_C);
    assert_eq!(terminal.end().0, Some(130));
}

#[test]
fn the_history_outlives_the_chat() {
    let mut terminal = Terminal::open(80);
    terminal.enter("remember x");
    terminal.see("four\r\n");
    let folder = terminal.leave();
    let model = folder.path().join("model.gguf");
    let mut terminal = Terminal::open_in(folder, &model, 80);
    terminal.see("> ");
    terminal.press(UP);
    terminal.see("remember x");
    terminal.press(ENTER);
    terminal.see("four\r\n");
    terminal.leave();
}

#[test]
fn wide_characters_and_several_lines_survive_a_narrow_window() {
    let mut terminal = Terminal::open(12);
    let wide = "日本語の文字は幅が広い";
    terminal.see("> ");
    terminal.press(wide);
    terminal.press("\\");
    terminal.press(ENTER);
    terminal.press("\u{1F638} x");
    terminal.press(ENTER);
    terminal.see("four\r\n");
    terminal.see("> ");
    let file = terminal.folder.path().join("s.json");
    terminal.press(&format!("/save {}\r", file.display()));
    terminal.see("1 turn saved");
    let _folder = terminal.leave();
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    assert_eq!(saved["messages"][0]["content"], format!("{wide}\n\u{1F638} x"));
}
