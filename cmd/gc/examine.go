package main

import (
	"cmp"
	"context"
	"slices"

	"github.com/sirupsen/logrus"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	commands "github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/doctor"
	"github.com/flexlvm/flexlvm/internal/install"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// pluginDirVariable names the environment variable with kubelet's volume plugin directory, in which the installation
// puts the FlexVolume driver. The variable is empty if that driver is not installed.
const pluginDirVariable = "PLUGIN_DIR"

// examiner returns a function that checks this node and the volume groups as `flexlvm doctor` does. pluginDir is the
// value of pluginDirVariable.
func examiner(engine *node.Engine, host commands.Programs, log logrus.FieldLogger, pluginDir string) func(context.Context, []volume.Group) []flexlvmv1.Check {
	return func(ctx context.Context, groups []volume.Group) []flexlvmv1.Check {
		place, err := install.At(cmp.Or(pluginDir, install.DefaultPluginDir))
		if err != nil {
			return checks([]doctor.Finding{{Level: doctor.Fail, Check: "plugin directory", Detail: err.Error(), Do: "correct " + pluginDirVariable + " of DaemonSet flexlvm-gc (pluginDir in installer/settings)"}})
		}
		here := doctor.OnNode{Engine: engine, Programs: host, Log: log, Place: place, NoDriver: pluginDir == "", InDaemon: true}
		return checks(examineEach(ctx, here.Doctor, groups))
	}
}

// examineEach checks the node, and then each volume group. What several groups have in common is found once. A node
// without a group is healthy, even without LVM; it offers no room.
func examineEach(ctx context.Context, of func(volume.Group) *doctor.Doctor, groups []volume.Group) []doctor.Finding {
	all := of("").ExamineNode(ctx)
	if len(groups) > 0 {
		all = append(all, of("").ExamineLVM(ctx)...)
	}
	for _, group := range groups {
		for _, f := range of(group).ExamineGroup(ctx) {
			if !slices.Contains(all, f) { // such as the groups that the devices file hides
				all = append(all, f)
			}
		}
	}
	return all
}

// checks converts findings to the API's checks, worst first.
func checks(findings []doctor.Finding) []flexlvmv1.Check {
	out := make([]flexlvmv1.Check, 0, len(findings))
	for _, f := range findings {
		out = append(out, flexlvmv1.Check{Level: string(f.Level), Check: f.Check, Detail: f.Detail, Do: f.Do})
	}
	weight := map[string]int{string(doctor.Fail): 0, string(doctor.Warn): 1, string(doctor.OK): 2}
	slices.SortStableFunc(out, func(a, b flexlvmv1.Check) int { return cmp.Compare(weight[a.Level], weight[b.Level]) })
	return out
}
