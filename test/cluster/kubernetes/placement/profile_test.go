package placement

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
)

// The scheduler accepts the profile in docs/placement.md.
func TestDocumentedProfile(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/placement.md")
	if err != nil {
		t.Fatal(err)
	}
	const begin = "```yaml\napiVersion: kubescheduler.config.k8s.io/v1\n"
	_, profile, found := strings.Cut(string(page), begin)
	if !found {
		t.Fatal("the page has no profile")
	}
	profile, _, _ = strings.Cut(profile, "```\n")
	file := filepath.Join(t.TempDir(), "profile.yaml")
	if err := os.WriteFile(file, []byte(strings.TrimPrefix(begin, "```yaml\n")+profile), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := options.LoadConfigFromFile(klog.Background(), file)
	if err != nil {
		t.Fatal(err)
	}
	if err := validation.ValidateKubeSchedulerConfiguration(config); err != nil {
		t.Error(err)
	}
	score := config.Profiles[0].Plugins.Score.Enabled
	if len(score) != 1 || score[0].Name != "VolumeBinding" || score[0].Weight != 5 {
		t.Errorf("score: %v", score)
	}
}
