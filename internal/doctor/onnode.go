package doctor

import (
	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/install"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/version"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An OnNode creates Doctors of the node that this process runs on.
type OnNode struct {
	Engine   *node.Engine
	Programs command.Programs
	Log      logrus.FieldLogger
	Place    install.Place // of the FlexVolume driver
	NoDriver bool          // as in Config
	InDaemon bool          // as in Config
}

// nodeInventory implements Inventory.
type nodeInventory struct {
	*lvm.Client
	*node.Engine
}

// Doctor returns the Doctor of a volume group; "" if there is none.
func (n OnNode) Doctor(group volume.Group) *Doctor {
	return New(Config{Group: group, Place: n.Place, NoDriver: n.NoDriver, InDaemon: n.InDaemon, Version: version.String, Dirs: []Dir{
		{What: "state directory", Path: node.DefaultStateDir},
		{What: "lock directory", Path: node.DefaultLockDir},
		{What: "log directory", Path: node.DefaultLogDir},
	}}, Host{
		Tools:     n.Programs.Unkillable,
		Driver:    command.New(n.Place.Dir(), n.Log).Killable,
		Inventory: nodeInventory{lvm.New(n.Programs.Unkillable, lock.Dir(node.DefaultLockDir)), n.Engine},
		Kernel:    Running{},
	})
}
