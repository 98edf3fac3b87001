//go:build deps

package volume

import (
	_ "github.com/google/uuid"
	_ "github.com/moby/sys/mountinfo"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/sirupsen/logrus"
	_ "github.com/spf13/cobra"
	_ "github.com/stretchr/testify/require"
	_ "golang.org/x/sys/unix"
	_ "gopkg.in/natefinch/lumberjack.v2"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/api/storage/v1"
	_ "k8s.io/apimachinery/pkg/apis/meta/v1"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/kubernetes/fake"
	_ "k8s.io/client-go/tools/clientcmd"
	_ "k8s.io/client-go/tools/leaderelection"
	_ "k8s.io/component-base/metrics"
	_ "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
	_ "sigs.k8s.io/yaml"
)
