"""Messages know their project and run by themselves now; a legal hold finds them by these."""

from django.db import migrations

COVER = """
DROP TRIGGER kernel_hold ON approvals_delivery;
CREATE TRIGGER kernel_hold BEFORE DELETE ON approvals_delivery
    FOR EACH ROW EXECUTE FUNCTION runs_keep_what_is_held('%s');
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0021_indexes_of_the_purge"), ("approvals", "0005_messages_know_their_run")]
    operations = [migrations.RunSQL(COVER % "named", COVER % "approval")]
