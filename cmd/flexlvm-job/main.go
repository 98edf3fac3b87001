// Command flexlvm-job makes package jobvolume available to shells. It uses no command-line library, to
// stay small: it is copied into users' pods.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/flexlvm/flexlvm/internal/version"
	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

const usage = `usage: flexlvm-job COMMAND

Commands for the volume that the workers of a job share, or that each worker has.
It is mounted at $FLEXLVM_JOB_DIR, or else at /persistent, which counts only if a
volume is mounted there. The worker's number is $JOB_COMPLETION_INDEX.

  job-dir             print the job's directory; fail if there is none
  worker-dir          create this worker's directory if needed, and print it
  log-file            create the directory of the log files if needed, and print the
                      path of this worker's log file
  job-dir-exists      exit with 0 if the job's directory exists, otherwise with 1
  worker-dir-exists   exit with 0 if this worker's directory exists, otherwise with 1
  worker-size         print how many bytes the worker may use; exit with 1 if
                      $FLEXLVM_WORKER_SIZE is not set
  worker-used         print how many bytes the worker's directory uses
  worker-fits         exit with 0 if it uses at most worker-size or that is not set,
                      otherwise with 1
  install DIR         copy this program into DIR, for the containers of a pod
  version             print the release

If a command fails, or the answer cannot be determined, it exits with 2 and prints
the reason on standard error.
`

// Exit codes.
const (
	yes    = 0
	no     = 1
	failed = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	answer, err := do(args)
	switch {
	case errors.Is(err, errNo):
		return no
	case err != nil:
		fmt.Fprintln(stderr, "flexlvm-job:", err)
		return failed
	}
	if answer != "" {
		fmt.Fprintln(stdout, answer)
	}
	return yes
}

// errUsage refers to the usage.
var errUsage = errors.New("flexlvm-job --help lists all commands")

// errNo makes the program exit with code no.
var errNo = errors.New("no")

func do(args []string) (string, error) {
	switch {
	case len(args) == 2 && args[0] == "install":
		return "", install(args[1])
	case len(args) != 1:
		return "", fmt.Errorf("give one command; %w", errUsage)
	}
	switch args[0] {
	case "help", "-h", "--help":
		return usage[:len(usage)-1], nil
	case "version", "--version":
		return "flexlvm-job " + version.String, nil
	}
	ask, known := commands[args[0]]
	if !known {
		return "", fmt.Errorf("there is no command %q; %w", args[0], errUsage)
	}
	v, err := jobvolume.FromEnvironment()
	if err != nil {
		return "", err
	}
	return ask(v)
}

var commands = map[string]func(jobvolume.Volume) (string, error){
	"job-dir":        jobvolume.Volume.JobDir,
	"worker-dir":     jobvolume.Volume.WorkerDir,
	"log-file":       jobvolume.Volume.LogFile,
	"job-dir-exists": func(v jobvolume.Volume) (string, error) { return answer(v.JobDirExists()) },
	"worker-size": func(jobvolume.Volume) (string, error) {
		size, err := jobvolume.Size()
		if err == nil && size == 0 {
			err = errNo
		}
		return strconv.FormatInt(size, 10), err
	},
	"worker-used": func(v jobvolume.Volume) (string, error) {
		used, err := v.Used()
		return strconv.FormatInt(used, 10), err
	},
	"worker-fits": func(v jobvolume.Volume) (string, error) {
		err := v.CheckSize()
		if errors.Is(err, jobvolume.ErrTooLarge) {
			err = errNo
		}
		return "", err
	},
	"worker-dir-exists": func(v jobvolume.Volume) (string, error) { return answer(v.WorkerDirExists()) },
}

func answer(there bool, err error) (string, error) {
	if err == nil && !there {
		err = errNo
	}
	return "", err
}

// install copies this program into dir. The copy gets its name last, so that an incomplete copy is
// never run.
func install(dir string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	from, err := os.Open(self)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	defer func() { _ = from.Close() }() // it was only read
	to, err := os.CreateTemp(dir, ".flexlvm-job-")
	if err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err == nil {
		err = os.Rename(to.Name(), filepath.Join(dir, "flexlvm-job"))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("copy this program: %w", err), os.Remove(to.Name()))
	}
	return nil
}
