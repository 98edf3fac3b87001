// Package doctor checks a node and reports what prevents flexlvm from working there, or will soon, and what to
// do about it. It changes nothing, except that the kernel may load its xfs module.
package doctor

import (
	"context"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/install"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Level is the severity of a finding.
type Level string

// The levels. A node with a FAIL cannot serve some or all volumes.
const (
	OK   Level = "OK"
	Warn Level = "WARN"
	Fail Level = "FAIL"
)

// A Finding is the result of one check.
type Finding struct {
	Level  Level  `json:"level"`
	Check  string `json:"check"`
	Detail string `json:"detail"`
	Do     string `json:"do,omitempty"` // what to do about it
}

// Config describes how the node should be set up.
type Config struct {
	Group    volume.Group
	Place    install.Place
	NoDriver bool   // the FlexVolume driver is not installed, so neither it nor Place is checked
	InDaemon bool   // the node daemon runs the checks, and DaemonSet flexlvm-installer installs the driver
	Version  string // the release of the running program
	Dirs     []Dir
}

// A Dir is a directory that the driver writes to.
type Dir struct {
	What string
	Path string
}

// Inventory reports on LVM and the volumes.
type Inventory interface {
	Groups(ctx context.Context) ([]lvm.VolumeGroup, error)
	ThinPools(ctx context.Context) ([]lvm.ThinPool, error)
	List(ctx context.Context) ([]inventory.Volume, error)
}

// Host is the doctor's access to the machine.
type Host struct {
	Tools     exec.Interface // the host's programs
	Driver    exec.Interface // programs in the driver's directory
	Inventory Inventory
	Kernel    Kernel
	Root      string // the root directory; empty means /
}

// A Doctor checks one node.
type Doctor struct {
	cfg  Config
	host Host
}

// New returns a doctor for this host.
func New(cfg Config, host Host) *Doctor { return &Doctor{cfg: cfg, host: host} }

// Examine runs all checks. A check that cannot be run is a finding too.
func (d *Doctor) Examine(ctx context.Context) []Finding {
	all := d.examineHost(ctx)
	all = append(all, d.ExamineGroup(ctx)...)
	all = append(all, d.ExamineLVM(ctx)...)
	return append(all, d.examineState(ctx)...)
}

// ExamineNode runs all checks except those of the volume group and of LVM.
func (d *Doctor) ExamineNode(ctx context.Context) []Finding {
	return append(d.examineHost(ctx), d.examineState(ctx)...)
}

func (d *Doctor) examineHost(ctx context.Context) []Finding {
	return run(ctx, d.checkUser, d.checkKernel, d.checkDeviceMapper, d.checkXFS, d.checkReaders, d.checkTools, d.checkFIPS)
}

func (d *Doctor) examineState(ctx context.Context) []Finding {
	return run(ctx, d.checkDirs, d.checkPluginDir, d.checkDriver, d.checkVolumes)
}

// ExamineGroup runs only the checks of the volume group.
func (d *Doctor) ExamineGroup(ctx context.Context) []Finding {
	return run(ctx, d.checkGroup, d.checkDevicesFile)
}

// ExamineLVM runs only the checks of LVM, which do not depend on the volume group.
func (d *Doctor) ExamineLVM(ctx context.Context) []Finding {
	return run(ctx, d.checkThinPools, d.checkSnapshots, d.checkScan, d.checkFilters, d.checkArchive)
}

func run(ctx context.Context, checks ...func(context.Context) []Finding) (all []Finding) {
	for _, check := range checks {
		all = append(all, check(ctx)...)
	}
	return all
}

// Worst returns the worst level among findings.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level == Fail || f.Level == Warn && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

func ok(check, detail string) []Finding {
	return []Finding{{Level: OK, Check: check, Detail: detail}}
}

func warn(check, detail, do string) []Finding {
	return []Finding{{Level: Warn, Check: check, Detail: detail, Do: do}}
}

func fail(check, detail, do string) []Finding {
	return []Finding{{Level: Fail, Check: check, Detail: detail, Do: do}}
}
